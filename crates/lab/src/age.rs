//! Ages file systems: draws operations from a profile, with one seed, and performs them.
//!
//! Content is zeroes, which a sparse device in memory does not store: only metadata takes memory.
//! Nothing depends on a clock, and one thread does everything, so the same inputs give the same
//! image. [`life`] performs the operations, [`profile`] describes them.

mod life;
pub mod profile;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use blockyard_alloc::Policy;
use blockyard_device::BlockDevice;
use blockyard_disk::num::count_as_f64;
use blockyard_engine::{FileSystem, OpenOptions};

use crate::target::engine::{context, unjournaled};
use life::Life;
use profile::Profile;

pub use life::{Deeds, What};

/// The number of operations if no length is given.
const OPERATIONS: u64 = 100_000;

/// How long to age an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// This many operations.
    Operations(u64),
    /// Until this many times the size of the image was written.
    Laps(f64),
}

/// How to age an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Ageing {
    /// What to do.
    pub profile: Profile,
    /// How long to do it.
    pub length: Length,
    /// Share (0..1) of the free space that files fill; `None`: the share of the profile.
    pub utilisation: Option<f64>,
    /// The text that was parsed; if none was, a text from which the same ageing is parsed.
    text: String,
}

/// What ageing depends on besides the profile and the length.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// The allocation policy.
    pub policy: Policy,
    /// Whether the allocator assumes a device with seek times.
    pub rotational: bool,
    /// Number of CPU slots that the operations come from, in turns.
    pub cpus: u32,
    /// Seed of all draws.
    pub seed: u64,
    /// Bytes that stay free for later use.
    pub room: u64,
}

impl Circumstances {
    /// Circumstances with four CPUs, no seek times, and no space that must stay free.
    #[must_use]
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self { policy, rotational: false, cpus: 4, seed, room: 0 }
    }
}

impl Ageing {
    /// Ageing by a profile for some length.
    #[must_use]
    pub fn new(profile: Profile, length: Length) -> Self {
        let text = match length {
            Length::Operations(count) => format!("{}:{count}", profile.name),
            Length::Laps(laps) => format!("{}:{laps}x", profile.name),
        };
        Self { profile, length, utilisation: None, text }
    }

    /// Whether both age an image in the same way, however they are written: `mail` and
    /// `mail:100000` do.
    #[must_use]
    pub fn is_same_life(&self, other: &Self) -> bool {
        let share = |one: &Self| one.utilisation.unwrap_or(one.profile.utilisation);
        self.profile == other.profile
            && self.length == other.length
            && (share(self) - share(other)).abs() < 1e-9
    }

    /// The same ageing, except that files fill this share of the free space.
    ///
    /// # Errors
    /// When `utilisation` is not between 0 and 1.
    pub fn filled_to(self, utilisation: f64) -> Result<Self> {
        ensure!(utilisation > 0.0 && utilisation < 1.0, "files take between 0 and 100 % of the free space");
        let text = format!("{}:{}%", self.text, utilisation * 100.0);
        Ok(Self { utilisation: Some(utilisation), text, ..self })
    }
}

impl FromStr for Ageing {
    type Err = anyhow::Error;

    /// Parses `PROFILE[:N][:P%]`. N is a number of operations, or `2x` for writing two times the
    /// size of the image; P is the share of the free space that files fill. The message of an error
    /// includes its causes, because the command line shows only the message.
    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let profile =
            Profile::open(parts.next().unwrap_or_default()).map_err(|error| anyhow!("{error:#}"))?;
        let mut ageing = Self::new(profile, Length::Operations(OPERATIONS));
        for part in parts {
            let parsed = if let Some(percent) = part.strip_suffix('%') {
                percent.parse::<f64>().ok().and_then(|percent| ageing.clone().filled_to(percent / 100.0).ok())
            } else if let Some(laps) = part.strip_suffix('x') {
                let laps = laps.parse().ok().filter(|laps| *laps > 0.0 && *laps <= 1000.0);
                laps.map(|laps| Self { length: Length::Laps(laps), ..ageing.clone() })
            } else {
                let count = part.parse().ok().filter(|count| *count > 0);
                count.map(|count| Self { length: Length::Operations(count), ..ageing.clone() })
            };
            let Some(parsed) = parsed else {
                bail!("{text:?}: {part:?} is neither a number of operations or laps (2x) nor a share (85%)");
            };
            ageing = parsed;
        }
        Ok(Self { text: text.to_owned(), ..ageing })
    }
}

impl fmt::Display for Ageing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Ages an image; returns what was done.
///
/// # Errors
/// Errors of the file system, and when the image has no more free space than `who.room`.
pub fn age(device: Arc<dyn BlockDevice>, ageing: &Ageing, who: &Circumstances) -> Result<Deeds> {
    let size = device.size();
    let options = OpenOptions {
        cpus: who.cpus,
        rotational: who.rotational,
        cache_bytes: 128 << 20,
        ..unjournaled(who.policy, who.seed)
    };
    let fs = FileSystem::open(device, options, &context(0))?;
    let statistics = fs.statistics();
    let free = statistics.blocks_free * u64::from(statistics.block_size);
    ensure!(
        free > who.room,
        "{} MiB are free, and {} have to stay so: nothing is left to age; give a larger image",
        free >> 20,
        who.room >> 20
    );
    let wanted = count_as_f64(free) * ageing.utilisation.unwrap_or(ageing.profile.utilisation);
    let most = crate::workload::scale::whole(wanted).min(free - who.room);
    let mut life = Life::begin(fs, &ageing.profile, most, who).with_context(|| format!("age by {ageing}"))?;
    match ageing.length {
        Length::Operations(count) => life.live(|deeds| count.saturating_sub(deeds.operations())),
        Length::Laps(laps) => {
            let end = crate::workload::scale::whole(count_as_f64(size) * laps);
            life.live(|deeds| if deeds.written_bytes < end { u64::MAX } else { 0 })
        }
    }
    .with_context(|| format!("age by {ageing}"))?;
    life.end()
}

#[cfg(test)]
mod tests {
    use blockyard_device::MemoryDevice;

    use super::*;
    use crate::run::{Verdict, default_mkfs};
    use crate::workload::{GIB, MIB};

    fn aged(text: &str, bytes: u64, room: u64) -> (Arc<MemoryDevice>, Deeds) {
        let device = Arc::new(MemoryDevice::new(bytes));
        blockyard_engine::mkfs::format(&*device, &default_mkfs(1)).unwrap();
        let who = Circumstances { room, ..Circumstances::new(Policy::default(), 7) };
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
        let deeds = age(shared, &text.parse().unwrap(), &who).unwrap();
        (device, deeds)
    }

    fn free(device: &Arc<MemoryDevice>) -> u64 {
        let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(device);
        let options = unjournaled(Policy::default(), 1);
        let statistics = FileSystem::open(shared, options, &context(0)).unwrap().statistics();
        statistics.blocks_free * 4096
    }

    #[test]
    fn every_profile_leaves_a_sound_image_and_repeats_to_the_byte() {
        for name in Profile::NAMES {
            let text = format!("{name}:700");
            let (device, deeds) = aged(&text, 2 * GIB, 0);
            assert_eq!(deeds.operations(), 700, "{name}");
            let mut verdict = Verdict::default();
            verdict.check(&*device).unwrap();
            verdict.e2fsck(|path| Ok(device.save(path)?)).unwrap();
            assert!(verdict.is_clean(), "{name}: {}", verdict.text());
            assert!(deeds.of(What::Create) > 0 && deeds.files > 0, "{name}: {deeds:?}");
            // Content is zeroes: only metadata is stored.
            assert!(device.resident_bytes() < 64 * MIB, "{name}: {}", device.resident_bytes());
            let (again, _) = aged(&text, 2 * GIB, 0);
            let (mut one, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
            for at in (0..2 * GIB).step_by(1 << 20) {
                device.read_at(at, &mut one).unwrap();
                again.read_at(at, &mut other).unwrap();
                assert!(one == other, "{name}: {at}");
            }
        }
    }

    /// Ages an image for three laps. In this time, more than 1000 files were deleted. The remaining
    /// files take about the requested share.
    #[test]
    fn a_life_fills_the_image_to_its_share_and_stays_there() {
        let (device, deeds) = aged("mail:3x:85%", GIB / 2, 0);
        assert!(deeds.written_bytes >= GIB);
        let (fresh, _) = aged("mail:1", GIB / 2, 0);
        let share = 1.0 - count_as_f64(free(&device)) / count_as_f64(free(&fresh));
        assert!((0.78..=0.86).contains(&share), "{share}");
        assert!(deeds.of(What::Delete) > 1000, "{deeds:?}");
    }

    #[test]
    fn room_stays_free() {
        let room = 700 * MIB;
        let (device, _) = aged("build:1x:90%", GIB, room);
        assert!(free(&device) >= room - 16 * MIB, "{}", free(&device) / MIB);
        let device = Arc::new(MemoryDevice::new(GIB));
        blockyard_engine::mkfs::format(&*device, &default_mkfs(1)).unwrap();
        let who = Circumstances { room: GIB, ..Circumstances::new(Policy::default(), 7) };
        let text = age(device, &"mail".parse().unwrap(), &who).unwrap_err().to_string();
        assert!(text.contains("have to stay so"), "{text}");
    }

    /// The profile `mail` fills 75 %, and 100,000 operations are the default.
    #[test]
    fn lives_are_the_same_however_they_are_written() {
        let mail: Ageing = "mail".parse().unwrap();
        for same in ["mail", "mail:100000", "mail:75%", "mail:75%:100000"] {
            assert!(mail.is_same_life(&same.parse().unwrap()), "{same}");
        }
        for other in ["build", "mail:99999", "mail:1x", "mail:76%"] {
            assert!(!mail.is_same_life(&other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn a_life_is_told_in_one_word() {
        let of = |text: &str| text.parse::<Ageing>();
        assert_eq!(of("mail").unwrap().length, Length::Operations(OPERATIONS));
        let one = of("vm:20:85%").unwrap();
        assert_eq!((one.length, one.utilisation), (Length::Operations(20), Some(0.85)));
        assert_eq!(of("phone:1.5x").unwrap().length, Length::Laps(1.5));
        assert_eq!(of("phone:1.5x").unwrap().to_string(), "phone:1.5x");
        let profile = Profile::open("mail").unwrap();
        assert_eq!(Ageing::new(profile, Length::Operations(9)).to_string(), "mail:9");
        for wrong in ["mail:", "mail:0", "mail:0x", "mail:100%", "mail:x", "male"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.json");
        std::fs::write(&path, "{\"nam\": 1}").unwrap();
        let text = of(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(text.contains("unknown field"), "{text}");
    }
}
