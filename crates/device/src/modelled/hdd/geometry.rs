//! Positions of bytes on a disk, which has zones of equal width. All tracks of a zone hold the same
//! number of bytes; the tracks of an outer zone hold more than those of an inner zone.

use std::time::Duration;

use super::super::{share, transfer};

/// A position on the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    /// From 0, the outermost track, to 1, the innermost.
    pub radius: f64,
    /// The fraction of a rotation from the start of a track to the byte, from 0 to 1.
    pub angle: f64,
    /// Number of the track, counted from the outermost.
    pub track: u64,
    /// Bytes per second that pass under the head there.
    pub rate: u64,
}

/// One zone.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_byte: u64,
    bytes: u64,
    first_track: u64,
    rate: u64,
    track_bytes: u64,
}

/// The zones, outermost first. The outermost one holds the first bytes.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    zones: Vec<Zone>,
}

impl Geometry {
    /// A disk of `bytes` in `count` zones. The rate falls evenly from `outer` to `inner` bytes per
    /// second, and each zone has the rate of its middle. A rotation takes `turn`.
    pub(super) fn new(bytes: u64, count: u64, (outer, inner): (u64, u64), turn: Duration) -> Self {
        assert!(count > 0 && inner > 0 && outer >= inner, "zones, slower towards the middle");
        let rate = |zone: u64| outer - (outer - inner) * (2 * zone + 1) / (2 * count);
        let all: u64 = (0..count).map(rate).sum();
        let mut zones = Vec::new();
        let (mut first_byte, mut first_track) = (0, 0);
        for zone in 0..count {
            let rate = rate(zone);
            let share = u128::from(bytes) * u128::from(rate) / u128::from(all);
            let rest = bytes - first_byte;
            let bytes = if zone + 1 == count { rest } else { u64::try_from(share).unwrap_or(rest) };
            let of_turn = u128::from(rate) * turn.as_nanos() / 1_000_000_000;
            let track_bytes = u64::try_from(of_turn).unwrap_or(u64::MAX).max(1);
            zones.push(Zone { first_byte, bytes, first_track, rate, track_bytes });
            first_byte += bytes;
            first_track += bytes.div_ceil(track_bytes);
        }
        Self { zones }
    }

    /// Position of a byte. A byte beyond the end counts as the end.
    pub(super) fn place(&self, byte: u64) -> Place {
        let index = self.zones.partition_point(|zone| zone.first_byte <= byte).saturating_sub(1);
        let zone = &self.zones[index];
        let within = (byte - zone.first_byte).min(zone.bytes);
        let zones = u64::try_from(self.zones.len()).unwrap_or(u64::MAX);
        let outside = u64::try_from(index).unwrap_or(u64::MAX);
        Place {
            radius: share(outside, zones) + share(within, zone.bytes) * share(1, zones),
            angle: share(within % zone.track_bytes, zone.track_bytes),
            track: zone.first_track + within / zone.track_bytes,
            rate: zone.rate,
        }
    }

    /// How long the head takes from byte `first` to byte `end`, track after track.
    pub(super) fn transfer(&self, first: u64, end: u64) -> Duration {
        let mut time = Duration::ZERO;
        let mut at = first;
        while at < end {
            let index = self.zones.partition_point(|zone| zone.first_byte <= at).saturating_sub(1);
            let zone = &self.zones[index];
            let is_last = index + 1 == self.zones.len();
            let until = if is_last { end } else { end.min(zone.first_byte + zone.bytes) };
            time += transfer(until - at, zone.rate);
            at = until;
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_micros(8333);

    #[test]
    fn zones_cover_the_disk_and_the_outer_ones_hold_more() {
        let bytes = 1_000_000_007;
        let disk = Geometry::new(bytes, 10, (100_000_000, 50_000_000), TURN);
        assert_eq!(disk.zones.iter().map(|zone| zone.bytes).sum::<u64>(), bytes);
        assert!(
            disk.zones.windows(2).all(|pair| pair[0].bytes > pair[1].bytes
                && pair[0].first_byte + pair[0].bytes == pair[1].first_byte)
        );
        // Half of the bytes lie within less than half of the radius.
        let middle = disk.place(bytes / 2).radius;
        assert!((0.38..0.47).contains(&middle), "{middle}");
        assert!(disk.place(0).radius < 1e-9 && (disk.place(bytes).radius - 1.0).abs() < 1e-6);
        // From end to end at the mean of the rates.
        let whole = disk.transfer(0, bytes).as_secs_f64();
        assert!((whole - 13.33).abs() < 0.05, "{whole}");
    }

    #[test]
    fn a_turn_further_on_is_the_same_angle_on_the_next_track() {
        let disk = Geometry::new(1 << 30, 1, (100_000_000, 100_000_000), TURN);
        let (one, next) = (disk.place(1000), disk.place(1000 + 833_300));
        assert!((one.angle - next.angle).abs() < 1e-9 && one.track + 1 == next.track);
    }
}
