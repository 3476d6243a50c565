//! Compares the policy `yard` with the others. One table has every figure that yard is judged by:
//! with threads, with overlapping operations in each round, on many virtual CPUs, on aged images,
//! and on modelled devices.
//!
//! Each row is one figure of the cells that differ only in their policy. It shows yard's value, the
//! best other policy's value, the ratio of the two, and a mark if yard loses. Values of repeated
//! cells are medians. For extents per file with threads, the table also counts the repetitions in
//! which yard has at most the best other policy's median.

mod rates;

use blockyard_disk::num::{count_as_f64, u64_from_usize};

use crate::age::Ageing;
use crate::e2;
use crate::figures::row::{Interleave, Row};
use crate::figures::{Table, summary, table};
use crate::machine::Machine;
use crate::run::{ImageSource, Plan, Setup};
use crate::runner::Limit;
use crate::workload::scale::scaled;
use crate::workload::{GIB, Workload};

/// The policy that is judged.
const OURS: &str = "yard";
/// All other policies for today's images.
const OTHERS: [&str; 9] = [
    "linux-6.16",
    "linux-6.18",
    "rotalloc-v1",
    "rralloc-v2",
    "rralloc-v3-regular",
    "inode-cursor",
    "rralloc",
    "first-fit",
    "best-fit",
];
/// The only policy to compare with in cells that the other policies were not designed for.
const LINUX: &str = "linux-6.18";
/// The fio jobs run without preallocation. Otherwise their writes would have nothing to allocate.
const WORKLOADS: [&str; 5] = [
    "fallocate2",
    "append64",
    "seqwrite:fallocate=none",
    "smallfiles:fallocate=none",
    "allocstress:fallocate=none",
];
const WORKERS: [u32; 3] = [2, 8, 64];
const VIRTUAL_CPUS: u32 = 96;
/// Operations of each worker, if a cell ends after a number of operations and the settings do not
/// give this number.
const OPS: u64 = 1000;
const LIVES: [&str; 3] = ["mail", "build", "database"];
/// The workloads that run on each device.
const ON_DEVICES: [&str; 5] = [
    "seqwrite:fallocate=none",
    "smallfiles:fallocate=none",
    "allocstress:fallocate=none",
    "directappend",
    "churn",
];
const DEVICES: [&str; 2] = ["hdd", "ssd"];
/// Number of workers on aged images, and on devices if the settings do not give a number.
const SOME_WORKERS: u32 = 8;
/// Size of the aged images, and the least size of images on devices.
const IMAGE_BYTES: u64 = 64 * GIB;

/// With threads and on devices, a rate loses below this share of the best other policy's rate.
const RATE_KEPT: f64 = 0.97;
/// On virtual CPUs, a rate loses below this multiple of Linux's rate.
const VIRTUAL_GAIN: f64 = 1.5;
/// With threads, yard must have at most the best other policy's extents per file in this share of
/// its repetitions.
const REPETITIONS_HELD: f64 = 0.9;

pub(crate) fn plans(setup: &Setup) -> Vec<Plan> {
    let workers = setup.workers.clone().unwrap_or(WORKERS.to_vec());
    let given = setup.policies.iter().flatten().map(String::as_str).filter(|arm| *arm != OURS);
    let others: Vec<&str> = if setup.policies.is_some() { given.collect() } else { OTHERS.to_vec() };
    let all: Vec<&str> = std::iter::once(OURS).chain(others).collect();
    let mut plans: Vec<Plan> =
        WORKLOADS.iter().map(|name| setup.plan(name, &all, &workers, Interleave::Threads)).collect();
    let counted = |plan: Plan| Plan { limit: counted(setup, &plan.workload), repeat: 1, ..plan };
    plans.extend(
        WORKLOADS.iter().map(|name| counted(setup.plan(name, &[OURS, LINUX], &workers, Interleave::Overlap))),
    );
    plans.extend(Machine::NAMES.into_iter().map(|name| {
        let plan = counted(setup.plan("fallocate2", &[OURS, LINUX], &[VIRTUAL_CPUS], Interleave::Virtual));
        let machine = Machine::open(name).expect("a test reads every machine that is built in");
        let image = ImageSource::memory(plan.workload.published_device(), setup.seed);
        Plan { image, machine: Some(machine), ..plan }
    }));
    plans.extend(LIVES.into_iter().map(|life| {
        let plan = counted(setup.plan(
            "smallfiles:fallocate=none",
            &[OURS, LINUX],
            &[SOME_WORKERS],
            Interleave::Overlap,
        ));
        let aged: Ageing = life.parse().expect("a test reads every life that is built in");
        let image = setup.image.clone().unwrap_or_else(|| ImageSource::memory(IMAGE_BYTES, setup.seed));
        Plan { image, aged: Some(aged), ..plan }
    }));
    plans.extend(on_devices(setup));
    plans
}

/// The workloads on each modelled device.
fn on_devices(setup: &Setup) -> impl Iterator<Item = Plan> {
    let known =
        || DEVICES.map(|name| name.parse().expect("a test reads every device that is built in")).into();
    let devices = if setup.devices.is_empty() { known() } else { setup.devices.clone() };
    let workers = setup.workers.clone().unwrap_or(vec![SOME_WORKERS]);
    devices.into_iter().flat_map(move |device| {
        let workers = workers.clone();
        ON_DEVICES.iter().map(move |name| {
            let plan = setup.plan(name, &[OURS, LINUX], &workers, Interleave::Lockstep);
            let plan = e2::on_device(setup, Plan { repeat: 1, ..plan }, device.clone());
            // Never below 64 GiB, however small the files, so that each writer can find groups of
            // its own.
            let bytes = scaled(plan.workload.published_device(), setup.scale).max(IMAGE_BYTES);
            let image = setup.image.clone().unwrap_or_else(|| ImageSource::memory(bytes, setup.seed));
            Plan { image, ..plan }
        })
    })
}

/// Limits a cell by a number of operations instead of time, so that each run of the cell does the
/// same. A workload that ends by itself has no limit.
fn counted(setup: &Setup, workload: &Workload) -> Limit {
    let ops = (!workload.ends_by_itself()).then(|| setup.limit.ops_per_worker.unwrap_or(OPS));
    Limit { time: None, ops_per_worker: ops, fsync_end: false }
}

/// One figure that yard is judged by.
struct Judged {
    name: &'static str,
    value: fn(&Row) -> f64,
    rule: Rule,
}

/// The rule by which yard loses.
#[derive(Clone, Copy)]
enum Rule {
    /// The best figure is the greatest. Yard loses if its figure is below this multiple of the best
    /// other policy's figure.
    Most(f64),
    /// The best figure is the least. Yard loses if its figure is above the best other policy's.
    Least,
    /// Like `Least`, but yard loses only if its figure is above the best in more than a tenth of
    /// its repetitions.
    MostlyLeast,
}

fn judged(row: &Row) -> Vec<Judged> {
    let rate = |kept| Judged { name: "operations/s", value: |row| row.ops_per_s, rule: Rule::Most(kept) };
    let extents = |rule| Judged { name: "extents/file", value: |row| row.extents_per_file, rule };
    let free = Judged {
        name: "mean free extent, KiB",
        value: |row| count_as_f64(row.avg_free_extent_kb),
        rule: Rule::Most(1.0),
    };
    let least = |name, value| Judged { name, value, rule: Rule::Least };
    let read_tree = least("the tree read on hdd, ms", |row| row.reading.read_tree_hdd_ms.unwrap_or(f64::NAN));
    // In virtual time there is no image to read, so only the rate counts.
    if row.interleave != Interleave::Virtual && !crate::figures::states::is_fresh(&row.state) {
        return vec![
            extents(Rule::Least),
            free,
            least("runs of directory blocks", |row| {
                row.reading.directory_runs.map_or(f64::NAN, count_as_f64)
            }),
            least("a directory read on hdd, ms", |row| row.reading.read_directory_hdd_ms.unwrap_or(f64::NAN)),
            read_tree,
        ];
    }
    if row.modelled.is_some() {
        return vec![rate(RATE_KEPT), extents(Rule::Least), read_tree];
    }
    match row.interleave {
        Interleave::Threads => vec![rate(RATE_KEPT), extents(Rule::MostlyLeast)],
        Interleave::Virtual => vec![rate(VIRTUAL_GAIN)],
        Interleave::Overlap | Interleave::Lockstep => {
            vec![extents(Rule::Least), least("free extents", |row| count_as_f64(row.free_extents)), free]
        }
    }
}

pub(crate) fn tables(rows: &[Row]) -> Vec<Table> {
    let heads = ["cell", "workers", "figure", "yard", "best other", "of", "ratio", "mark"];
    let mut table = Table::new("yard and the best of the others, figure by figure", heads).with_keys(3);
    let mut losses = 0;
    for (cell, part) in summary::by_workload(rows) {
        let Some(first) = part.first() else { continue };
        let mut workers: Vec<u32> = part.iter().map(|row| row.workers).collect();
        workers.sort_unstable();
        workers.dedup();
        for count in workers {
            for judged in judged(first) {
                let Some(line) = line(&part, count, &judged) else { continue };
                losses += usize::from(line.loses);
                table.push(
                    [cell.clone(), count.to_string(), judged.name.to_owned()].into_iter().chain(line.cells()),
                );
            }
        }
    }
    table.note(format!("{losses} of {} figures lose.", table.rows.len()));
    table.note(format!(
        "a rate loses below {RATE_KEPT} of the best other's, on virtual CPUs below {VIRTUAL_GAIN} times it; any other figure loses if \
         it is worse than the best other's. With threads, extents per file lose only if fewer than nine of ten repetitions have \
         at most the best other's median."
    ));
    table.note(
        "extents, runs and reading times are those of the whole image; on an aged image they include the files of its life.",
    );
    std::iter::once(table).chain(rates::table(rows)).collect()
}

/// A row of the table.
struct Line {
    ours: f64,
    best: f64,
    of: String,
    /// Under [`Rule::MostlyLeast`]: the number of repetitions in which our figure was at most
    /// `best`, and the number of all repetitions.
    held: Option<(usize, usize)>,
    loses: bool,
}

impl Line {
    fn cells(self) -> [String; 5] {
        let held = self.held.map_or(String::new(), |(held, all)| format!(" ({held} of {all})"));
        [
            format!("{}{held}", table::figure(self.ours)),
            table::figure(self.best),
            self.of,
            format!("{:.2}", self.ours / self.best),
            if self.loses { "LOSES".to_owned() } else { String::new() },
        ]
    }
}

fn line(rows: &[&Row], workers: u32, judged: &Judged) -> Option<Line> {
    let median = |policy: &str| {
        let spread = summary::median(rows, policy, Some(workers), judged.value)?;
        spread.median.is_finite().then_some(spread.median)
    };
    let ours = median(OURS)?;
    let others = summary::policies(rows).into_iter().filter(|policy| *policy != OURS);
    let known: Vec<(&str, f64)> = others.filter_map(|policy| Some((policy, median(policy)?))).collect();
    let better = |one: &&(&str, f64), other: &&(&str, f64)| one.1.total_cmp(&other.1);
    let &(of, best) = match judged.rule {
        Rule::Most(_) => known.iter().max_by(better)?,
        Rule::Least | Rule::MostlyLeast => known.iter().min_by(better)?,
    };
    let mine = || rows.iter().filter(|row| row.policy == OURS && row.workers == workers);
    let held = mine().filter(|row| (judged.value)(row) <= best).count();
    let share = count_as_f64(u64_from_usize(held)) / count_as_f64(u64_from_usize(mine().count()));
    let (loses, held) = match judged.rule {
        Rule::Most(kept) => (ours < kept * best, None),
        Rule::Least => (ours > best, None),
        Rule::MostlyLeast => (share < REPETITIONS_HELD, Some((held, mine().count()))),
    };
    Some(Line { ours, best, of: of.to_owned(), held, loses })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    #[test]
    fn losing_figures_are_marked_and_counted() {
        let of =
            |policy: &str, ops: f64, extents: f64| Row { extents_per_file: extents, ..row(policy, 2, ops) };
        let mut rows = vec![of("linux-6.18", 100.0, 2.0), of("rralloc", 90.0, 1.5)];
        // Nine repetitions have the best other policy's figure, one has more.
        rows.extend((0..10).map(|nr| of("yard", 96.0, if nr == 0 { 9.0 } else { 1.5 })));
        let table = &tables(&rows)[0];
        assert_eq!(
            table.rows,
            [
                ["fallocate2", "2", "operations/s", "96", "100", "linux-6.18", "0.96", "LOSES"],
                ["fallocate2", "2", "extents/file", "1.50 (9 of 10)", "1.50", "rralloc", "1.00", ""],
            ]
            .map(|row| row.map(str::to_owned).to_vec())
        );
        assert!(table.notes[0].starts_with("1 of 2 figures"));
        rows.last_mut().unwrap().extents_per_file = 9.0;
        assert_eq!(tables(&rows)[0].rows[1][7], "LOSES", "eight of ten");
    }

    #[test]
    fn each_way_has_its_figures() {
        let way =
            |interleave, state: &str| Row { interleave, state: state.to_owned(), ..row("yard", 96, 1.0) };
        let names = |row: Row| judged(&row).iter().map(|judged| judged.name).collect::<Vec<_>>();
        assert_eq!(names(way(Interleave::Virtual, "fresh")), ["operations/s"]);
        assert_eq!(names(way(Interleave::Overlap, "fresh")).len(), 3);
        assert!(names(way(Interleave::Overlap, "mail")).contains(&"the tree read on hdd, ms"));
        assert_eq!(names(way(Interleave::Virtual, "mail")), ["operations/s"]);
    }
}
