//! Seconds of I/O that a disk of 2009 would need for the reads of e2fsck and of our checker.
//!
//! The machine of the published table is not known. Its disk is modelled as a notebook disk, with
//! two values calibrated on two published cells:
//!
//! - its rate, on pass 2 of ext4's new allocator;
//! - the time that positioning takes (seeks and rotation alike), on pass 1 of ext3. If our layout
//!   has too few seeks to take the published time, the disk keeps the model's time instead.
//!
//! All other cells are predictions.
//!
//! The published seconds of I/O are real minus user and system time. In the model, the processor
//! works after each request for an equal share of the user and system time. If the next request
//! begins where the last one ended, the disk reads ahead meanwhile. The reads of our checker are
//! played on the same disk with the same CPU time for each pass, so only the reads differ.

use std::time::Duration;

use anyhow::Result;
use blockyard_device::modelled::{Driver, ModelParameters, Request};
use blockyard_disk::num::{count_as_f64, u64_from_usize};
use serde::{Deserialize, Serialize};

use super::published::LAYOUTS;
use super::reads::PassReads;

/// The model whose rate and positioning are calibrated.
const DISK: &str = "notebook-5400-2009";
/// The seek times of that model, in microseconds.
const SEEKS_US: [(&str, f64); 3] =
    [("shortest_seek_us", 1500.0), ("average_seek_us", 12_000.0), ("full_seek_us", 22_000.0)];
const TURNS_PER_MINUTE: f64 = 5400.0;
/// Bounds of the search for the rate and for the factor of positioning ([`Values`]).
const RATES_MB_S: (f64, f64) = (4.0, 2000.0);
const FACTORS: (f64, f64) = (0.25, 4.0);
/// Largest relative error of a calibrated cell.
const NEAR: f64 = 0.05;
/// Rounds in which rate and factor are searched for in turn, and halvings in each search.
const ROUNDS: usize = 4;
const HALVINGS: usize = 14;
/// The calibrated cells: kind and pass (from 1), first for positioning and then for the rate.
const PASS_OF_POSITIONING: (&str, usize) = ("ext3", 1);
const PASS_OF_RATE: (&str, usize) = ("ext4-2009", 2);

/// One pass of a checker on the modelled disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskPass {
    /// Requests to the disk.
    pub reads: u64,
    /// MiB that they read.
    pub read_mb: f64,
    /// Requests that had to wait until the arm had moved or the platter had turned.
    pub seeks: u64,
    /// Runs of adjacent requests: a request that does not begin where the previous one ended begins
    /// a run.
    pub runs: u64,
    /// Seconds of I/O.
    pub modelled_s: f64,
    /// MiB a second over these seconds.
    pub modelled_mb_s: f64,
    /// Whether a value of the disk was chosen to reproduce the published figure.
    pub is_calibrated: bool,
    /// The transfer rate of the disk at its edge, in MB a second; 0 in rows of an earlier version.
    #[serde(default)]
    pub disk_mb_s: f64,
    /// The factor by which a seek or a rotation takes longer than in the model; 0 in rows of an
    /// earlier version.
    #[serde(default)]
    pub disk_positioning: f64,
}

/// The two calibrated values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Values {
    rate: f64,
    positioning: f64,
}

/// The reads of both checkers on one file system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Reads {
    pub(super) e2fsck: PassReads,
    pub(super) our_checker: PassReads,
}

/// The five passes over one file system, by each of two checkers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnDisk {
    /// The passes of e2fsck.
    pub e2fsck: Vec<DiskPass>,
    /// The passes of our checker.
    pub our_checker: Vec<DiskPass>,
}

/// The requests to the disk by one checker on one file system.
struct Asked {
    /// The kind of the file system.
    kind: String,
    /// The requests before the passes, then those of each pass.
    passes: Vec<Vec<Request>>,
    /// Size of the file system.
    bytes: u64,
    /// Factor for the published CPU seconds.
    scale: f64,
}

/// Published seconds of waiting for I/O in a pass (from 1).
pub(super) fn published_io(kind: &str, pass: usize) -> f64 {
    let layout = LAYOUTS.iter().find(|layout| layout.kind == kind);
    layout.map_or(f64::NAN, |layout| layout.passes[pass - 1].io())
}

/// The five passes over each file system in `of`, which must include the kinds of both calibrated
/// cells. Only passes of e2fsck are calibrated.
///
/// # Errors
/// Those of the model; none are expected.
pub(super) fn passes(of: &[(String, Reads)], bytes: u64, scale: f64) -> Result<Vec<OnDisk>> {
    let asked_of_disk = |kind: &str, reads: &PassReads| Asked {
        kind: kind.to_owned(),
        passes: reads.asked_of_disk(),
        bytes,
        scale,
    };
    let asked: Vec<Asked> = of.iter().map(|(kind, reads)| asked_of_disk(kind, &reads.e2fsck)).collect();
    let (values, cells) = calibrated(&asked, scale)?;
    let play = |(index, (these, (kind, reads))): (usize, (&Asked, &(String, Reads)))| {
        let mut passes = these.played(values, super::PASSES)?;
        // The first row of a kind is the one on a fresh image.
        let is_first = asked.iter().position(|other| other.kind == these.kind) == Some(index);
        for (_, pass) in cells.iter().filter(|(kind, _)| is_first && *kind == these.kind) {
            passes[pass - 1].is_calibrated = true;
        }
        let our_checker = asked_of_disk(kind, &reads.our_checker).played(values, super::PASSES)?;
        Ok(OnDisk { e2fsck: passes, our_checker })
    };
    asked.iter().zip(of).enumerate().map(play).collect()
}

/// The calibrated values, and the cells that they reproduce.
///
/// Normally, values within the bounds reproduce both cells. Otherwise positioning takes the model's
/// time, and only the rate is calibrated. If the best rate within the bounds does not reproduce its
/// cell either, the list of cells is empty.
fn calibrated(asked: &[Asked], scale: f64) -> Result<(Values, Vec<(&'static str, usize)>)> {
    let seconds = |values: Values, (kind, pass): (&str, usize)| -> Result<f64> {
        let asked = asked.iter().find(|asked| asked.kind == kind);
        let Some(asked) = asked else { return Ok(f64::NAN) };
        Ok(asked.played(values, pass)?.last().map_or(f64::NAN, |pass| pass.modelled_s))
    };
    let target = |(kind, pass): (&str, usize)| published_io(kind, pass) * scale;
    // A faster disk needs less time; a disk that positions more slowly needs more.
    let rate = |values: Values| {
        let is_less = |rate| Ok(seconds(Values { rate, ..values }, PASS_OF_RATE)? < target(PASS_OF_RATE));
        Ok::<_, anyhow::Error>(Values { rate: sought(RATES_MB_S, is_less)?, ..values })
    };
    let start = Values { rate: 60.0, positioning: 1.0 };
    let mut values = start;
    for _ in 0..ROUNDS {
        values = rate(values)?;
        let is_more = |positioning| {
            Ok(seconds(Values { positioning, ..values }, PASS_OF_POSITIONING)? > target(PASS_OF_POSITIONING))
        };
        values.positioning = sought(FACTORS, is_more)?;
    }
    values = rate(values)?;
    let is_near =
        |values, cell| Ok::<_, anyhow::Error>((seconds(values, cell)? / target(cell) - 1.0).abs() < NEAR);
    if is_near(values, PASS_OF_POSITIONING)? && is_near(values, PASS_OF_RATE)? {
        return Ok((values, vec![PASS_OF_POSITIONING, PASS_OF_RATE]));
    }
    let values = rate(start)?;
    let cells = if is_near(values, PASS_OF_RATE)? { vec![PASS_OF_RATE] } else { Vec::new() };
    Ok((values, cells))
}

/// Finds where `is_beyond` turns true between two bounds, by geometric bisection.
fn sought((mut low, mut high): (f64, f64), is_beyond: impl Fn(f64) -> Result<bool>) -> Result<f64> {
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        if is_beyond(middle)? { high = middle } else { low = middle }
    }
    Ok((low * high).sqrt())
}

impl Values {
    fn model(self) -> Result<ModelParameters> {
        let mut changes: Vec<(&str, String)> =
            SEEKS_US.map(|(key, micros)| (key, format!("{:.3}", micros * self.positioning))).to_vec();
        changes.push(("turns_per_minute", format!("{:.0}", TURNS_PER_MINUTE / self.positioning)));
        changes.push(("outer_mb_s", format!("{:.3}", self.rate)));
        changes.push(("inner_mb_s", format!("{:.3}", self.rate / 2.0)));
        // Only the platter limits the rate.
        changes.push(("line_mb_s", "100000".to_owned()));
        changes.push(("command_us", "0".to_owned()));
        Ok(ModelParameters::named_with(DISK, &changes)?)
    }
}

impl Asked {
    /// Plays the first `count` passes on one disk, one after the other, and counts only the time
    /// spent waiting. After each request, the processor works for an equal share of the published
    /// CPU time of the pass. If a request begins where the one before it ends, the host submits it
    /// before it waits for the earlier one.
    fn played(&self, values: Values, count: usize) -> Result<Vec<DiskPass>> {
        let mut driver = Driver::new(values.model()?.model(self.bytes)?);
        let mut end = 0;
        let mut found = Vec::new();
        for (pass, requests) in self.passes.iter().enumerate().take(count + 1) {
            let before = driver.figures();
            let mut runs = 0;
            let mut waited = Duration::ZERO;
            let work = self.work_after_each(pass, requests.len());
            let mut ahead = None;
            for (index, request) in requests.iter().enumerate() {
                runs += u64::from(request.offset != end);
                end = request.end();
                let came = driver.figures().elapsed;
                let id = ahead.take().unwrap_or_else(|| driver.ask(request));
                let follows = requests.get(index + 1).filter(|next| next.offset == end);
                ahead = follows.map(|next| driver.ask(next));
                driver.wait_for(id);
                waited += driver.figures().elapsed - came;
                driver.pass(work);
            }
            let after = driver.figures();
            let bytes: u64 = requests.iter().map(|request| request.length).sum();
            let seeks = after.counts.positionings - before.counts.positionings;
            let time = waited;
            let pass = DiskPass::new(requests.len(), bytes, [seeks, runs], time);
            found.push(DiskPass { disk_mb_s: values.rate, disk_positioning: values.positioning, ..pass });
        }
        // The reads before the first pass are not a pass.
        Ok(found.split_off(1))
    }
}

impl Asked {
    /// CPU time after each of a pass's requests; none before the passes. A kind that was not
    /// published has the CPU time of ext4's new allocator.
    fn work_after_each(&self, pass: usize, requests: usize) -> Duration {
        let (Some(pass), Ok(requests)) = (pass.checked_sub(1), u32::try_from(requests)) else {
            return Duration::ZERO;
        };
        let layout =
            LAYOUTS.iter().find(|layout| layout.kind == self.kind).unwrap_or(&LAYOUTS[LAYOUTS.len() - 1]);
        Duration::from_secs_f64(layout.passes[pass].cpu() * self.scale) / requests.max(1)
    }
}

impl DiskPass {
    fn new(reads: usize, bytes: u64, [seeks, runs]: [u64; 2], time: Duration) -> Self {
        let (read_mb, modelled_s) = (count_as_f64(bytes) / count_as_f64(1 << 20), time.as_secs_f64());
        let modelled_mb_s = if modelled_s > 0.0 { read_mb / modelled_s } else { 0.0 };
        Self {
            reads: u64_from_usize(reads),
            read_mb,
            seeks,
            runs,
            modelled_s,
            modelled_mb_s,
            ..Self::default()
        }
    }

    /// The sum of several passes.
    #[must_use]
    pub fn sum(passes: &[Self]) -> Self {
        let (disk_mb_s, disk_positioning) =
            passes.first().map_or((0.0, 0.0), |pass| (pass.disk_mb_s, pass.disk_positioning));
        let mut all = Self { disk_mb_s, disk_positioning, ..Self::default() };
        for pass in passes {
            all.reads += pass.reads;
            all.read_mb += pass.read_mb;
            all.seeks += pass.seeks;
            all.runs += pass.runs;
            all.modelled_s += pass.modelled_s;
        }
        all.modelled_mb_s = if all.modelled_s > 0.0 { all.read_mb / all.modelled_s } else { 0.0 };
        all
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Reads of e2fsck: one before the passes, scattered ones in pass 1, sequential ones in pass 2,
    /// none in passes 3 and 4, and one in pass 5.
    fn reads(scattered: u64, in_order: u64) -> Reads {
        // Reads at equal distances would all find the platter in the same position.
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let far = (0..scattered).map(|_| (random.random_range(0..8 << 20) * 4096, 4096)).collect();
        let near = (0..in_order).map(|n| ((16 << 30) + n * 4096, 4096)).collect();
        let last = vec![(1 << 30, 65_536)];
        let e2fsck = PassReads(vec![vec![(1024, 1024)], far, near, Vec::new(), Vec::new(), last]);
        // Our checker reads a block of each directory, in the same order as e2fsck, and nothing
        // else.
        let mut our_checker = PassReads(vec![Vec::new(); 6]);
        our_checker.0[2].clone_from(&e2fsck.0[2]);
        Reads { e2fsck, our_checker }
    }

    /// The passes of e2fsck.
    fn of_e2fsck(of: &[(String, Reads)]) -> Vec<Vec<DiskPass>> {
        passes(of, 32 << 30, 1.0).unwrap().into_iter().map(|found| found.e2fsck).collect()
    }

    /// The same reads take the same time, whoever makes them; only cells of e2fsck are calibrated.
    #[test]
    fn our_checker_reads_from_the_same_disk() {
        let of = [("ext3".to_owned(), reads(500, 30_000)), ("ext4-2009".to_owned(), reads(100, 33_000))];
        for found in passes(&of, 32 << 30, 1.0).unwrap() {
            let (theirs, ours) = (&found.e2fsck[1], &found.our_checker[1]);
            // For e2fsck, pass 1 has left a few of the pages in the host's cache.
            assert!(ours.reads.abs_diff(theirs.reads) < 9 && !ours.is_calibrated, "{ours:?} {theirs:?}");
            assert!((ours.modelled_s - theirs.modelled_s).abs() < 0.05, "{ours:?} {theirs:?}");
            assert_eq!((found.our_checker[0].reads, found.our_checker[0].modelled_s), (0, 0.0));
            assert_eq!(ours.disk_mb_s.to_bits(), theirs.disk_mb_s.to_bits());
        }
    }

    /// Both calibrated cells match the published figures. The others follow from the reads.
    #[test]
    fn two_cells_are_calibrated_and_the_others_follow() {
        let of = [("ext3".to_owned(), reads(17_000, 30_000)), ("ext4-2009".to_owned(), reads(800, 33_000))];
        let found = of_e2fsck(&of);
        for (kind, pass) in [PASS_OF_POSITIONING, PASS_OF_RATE] {
            let row = usize::from(kind == "ext4-2009");
            let (ours, wanted) = (found[row][pass - 1].modelled_s, published_io(kind, pass));
            assert!((ours / wanted - 1.0).abs() < NEAR, "{kind} pass {pass}: {ours} of {wanted}");
        }
        assert_eq!(found.iter().flatten().filter(|pass| pass.is_calibrated).count(), 2);
        let [ext3, ext4] = [&found[0], &found[1]];
        assert!(ext3[0].seeks > 15_000 && ext4[1].seeks < 8, "{found:?}");
        assert!(ext3[2..4].iter().all(|pass| (pass.reads, pass.modelled_s) == (0, 0.0)), "{ext3:?}");
        // The two calibrated values stand in each pass, and in the sum.
        let (rate, positioning) = (ext3[0].disk_mb_s, ext3[0].disk_positioning);
        assert!(rate > 4.0 && rate < 2000.0 && positioning > 0.25 && positioning < 4.0, "{ext3:?}");
        let of_sum = DiskPass::sum(ext4);
        assert_eq!((of_sum.disk_mb_s, of_sum.disk_positioning), (rate, positioning));
        // 800 seeks take much less time than 17,000.
        let share = ext4[0].modelled_s / ext3[0].modelled_s;
        assert!((0.02..0.1).contains(&share), "{share}");
        assert_eq!(found, of_e2fsck(&of), "it repeats");
        assert!(
            (DiskPass::sum(ext3).read_mb - ext3.iter().map(|pass| pass.read_mb).sum::<f64>()).abs() < 1e-9
        );
    }

    /// With too few seeks for the published time, positioning is not calibrated, and its cell is
    /// not marked as calibrated.
    #[test]
    fn a_layout_without_the_published_seeks_calibrates_the_rate_alone() {
        let of = [("ext3".to_owned(), reads(500, 30_000)), ("ext4-2009".to_owned(), reads(100, 33_000))];
        let found = of_e2fsck(&of);
        let marked: Vec<bool> =
            found.iter().map(|row| row[0].is_calibrated || row[1].is_calibrated).collect();
        assert_eq!(marked, [false, true], "{found:?}");
        // 500 reads at random over a fifth of the disk: about 12 ms each.
        let each = found[0][0].modelled_s / 500.0;
        assert!((0.009..0.016).contains(&each), "{each}");
    }

    #[test]
    fn published_waiting_is_real_less_user_and_system() {
        assert!((published_io("ext3", 1) - 83.13).abs() < 1e-6);
        assert!((published_io("ext4-2009", 2) - 0.51).abs() < 1e-6);
    }
}
