//! E2: the three fio jobs of the round-robin comparison, with and without fio's preallocation; and
//! two workloads that allocate in parallel, direct appends and churn.
//!
//! The published runs used fio's default: the parent preallocates every file, one after the other,
//! before a job starts, so nothing is allocated in parallel. The jobs without preallocation are
//! ours.

mod published;

use std::collections::BTreeSet;

use crate::device_model::DeviceModel;
use crate::figures::row::{Interleave, Row};
use crate::figures::{Table, modelled, summary};
use crate::run::{ImageSource, Plan, Setup};
use crate::runner::Limit;
use crate::workload::scale::scaled;
use crate::workload::{FILES_KEPT, GIB, Workload, blocks_of_files};
use published::{ROUND_ROBIN, RoundRobin};

const JOBS: [&str; 3] = ["seqwrite", "smallfiles", "allocstress"];
/// Workloads that the reviewers of the round-robin patches asked for, besides the jobs.
const FURTHER: [&str; 2] = ["directappend", "churn"];
/// The names of the published policies, and the presets that imitate them.
const POLICIES: [(&str, &str); 2] = [("regular", "linux-6.18:scan=optimized"), ("rralloc", "rralloc-v2")];

/// The arms that the reviewers of the round-robin patches asked for, and our own arm. The comments
/// describe the arms as the reviewers did; V1 to V3 are versions of the patches.
const ARMS: [&str; 8] = [
    // Stock, in both scan modes. On the published devices, which are not rotational, the scan is
    // optimised.
    "linux-6.18:scan=linear",
    "linux-6.18:scan=optimized",
    // V1, one cursor.
    "rotalloc-v1",
    // Per-CPU cursors only.
    "rralloc-v2:sticky_inode=off",
    // Per-inode goals only: V3 of the regular policy.
    "rralloc-v3-regular",
    // V2; round robin in V3 is the same.
    "rralloc-v2",
    // Round robin as we would ship it.
    "rralloc",
    // Ours.
    "yard",
];

/// Operations of each worker on a modelled device, if no number is given: enough to write each file
/// once.
fn operations(workload: &Workload) -> u64 {
    match workload {
        Workload::Fio(job) => (job.size / job.block).max(1),
        Workload::DirectAppend { size, step } => size / step,
        // Enough operations that each worker deletes twice as many files as it keeps. Each file is
        // created, written, made durable, and deleted if it is not kept.
        Workload::Churn { size, step } => {
            let files = 3 * FILES_KEPT;
            2 * files + blocks_of_files(files, size / step) + (files - FILES_KEPT)
        }
        other => other.file_size() / 4096,
    }
}

fn jobs() -> impl Iterator<Item = String> {
    let with = JOBS.iter().map(|&job| job.to_owned());
    let without = JOBS.iter().map(|&job| format!("{job}:fallocate=none"));
    with.chain(without).chain(FURTHER.iter().map(|&name| name.to_owned()))
}

pub(crate) fn plans(setup: &Setup) -> Vec<Plan> {
    let arms = setup.policies.clone().unwrap_or(ARMS.map(str::to_owned).to_vec());
    if setup.devices.is_empty() {
        return jobs().map(|name| plan(setup, &name, &arms, Interleave::Threads)).collect();
    }
    let on = |device: &DeviceModel| {
        let (device, arms) = (device.clone(), &arms);
        jobs()
            .map(move |name| on_device(setup, plan(setup, &name, arms, Interleave::Lockstep), device.clone()))
    };
    setup.devices.iter().flat_map(on).collect()
}

fn plan(setup: &Setup, name: &str, arms: &[String], interleave: Interleave) -> Plan {
    let workers = setup.workers.clone().unwrap_or(vec![published_workers(name)]);
    setup.plan(name, arms, &workers, interleave)
}

/// The plan on a modelled device. If no number of operations is given, [`operations`] chooses it.
/// If no image is given, the size of the image scales with the files, but is at least 2 GiB. The
/// measured time includes making the data durable.
pub(crate) fn on_device(setup: &Setup, plan: Plan, device: DeviceModel) -> Plan {
    let bytes = scaled(plan.workload.published_device(), setup.scale).max(2 * GIB);
    let image = setup.image.clone().unwrap_or_else(|| ImageSource::memory(bytes, setup.seed));
    let ops = plan.limit.ops_per_worker.unwrap_or(operations(&plan.workload));
    Plan {
        limit: Limit { time: None, ops_per_worker: Some(ops), fsync_end: true },
        rotational: plan.rotational || device.parameters.is_rotational(),
        device: Some(device),
        image,
        ..plan
    }
}

pub(crate) fn tables(rows: &[Row]) -> Vec<Table> {
    if rows.iter().any(|row| row.modelled.is_some()) {
        return modelled::tables(rows);
    }
    let heads = [
        "job",
        "policy",
        "workers",
        "MiB/s",
        "IOPS",
        "mean us",
        "p99 us",
        "p99.99 us",
        "max us",
        "published MiB/s",
        "published IOPS",
        "published mean us",
    ];
    let title = "E2: bandwidth and latency of an operation, ours and published";
    let mut table = Table::new(title, heads).with_keys(3);
    for name in jobs() {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.workload == name).collect();
        let published_workers = published_workers(&name);
        for (published_name, policy) in POLICIES {
            let published =
                ROUND_ROBIN.iter().find(|row| row.workload == name && row.policy == published_name);
            let mut counts = worker_counts(&rows, policy);
            if published.is_some() || counts.is_empty() {
                counts.insert(published_workers);
            }
            for workers in counts {
                let at = published.filter(|_| workers == published_workers);
                let names = [name.clone(), format!("{published_name} ({policy})"), workers.to_string()];
                table.push(names.into_iter().chain(latencies(&rows, policy, workers)).chain(theirs(at)));
            }
        }
        let is_further = |policy: &&str| POLICIES.iter().all(|(_, known)| known != policy);
        for policy in summary::policies(&rows).into_iter().filter(is_further) {
            for workers in worker_counts(&rows, policy) {
                let names = [name.clone(), policy.to_owned(), workers.to_string()];
                table.push(names.into_iter().chain(latencies(&rows, policy, workers)).chain(theirs(None)));
            }
        }
    }
    table.note(
        "published in February 2026: Intel i5-8400, 32 GB, NVMe and SATA disks, kernel 6.18.9, one run a cell. Ours writes to \
         memory, without a device behind it. Compare the policies with each other, not ours with theirs.",
    );
    table.note(
        "Without :fallocate=none fio's parent preallocates every file before the jobs start: the jobs allocate nothing.",
    );
    vec![table]
}

fn published_workers(name: &str) -> u32 {
    Workload::by_name(name, 1.0).map_or(1, |workload| workload.published_workers())
}

/// The numbers of workers that a policy was measured with.
fn worker_counts(rows: &[&Row], policy: &str) -> BTreeSet<u32> {
    rows.iter().filter(|row| row.policy == policy).map(|row| row.workers).collect()
}

/// The published MiB/s, operations a second and mean latency.
fn theirs(published: Option<&RoundRobin>) -> [String; 3] {
    let figure = |value: fn(&RoundRobin) -> f64| {
        published.map_or("-".to_owned(), |published| value(published).to_string())
    };
    [figure(|row| row.bandwidth_mib_s), figure(|row| row.iops), figure(|row| row.latency_us)]
}

/// MiB/s, operations a second, and latencies in microseconds: mean, p99, p99.99, longest.
fn latencies(rows: &[&Row], policy: &str, workers: u32) -> [String; 6] {
    let ours = |value: fn(&Row) -> f64, digits: usize| {
        summary::median(rows, policy, Some(workers), value)
            .map_or("-".to_owned(), |spread| format!("{:.digits$}", spread.median))
    };
    [
        ours(|row| row.bw_mib_s, 0),
        ours(|row| row.ops_per_s, 0),
        ours(|row| row.lat_us_mean, 2),
        ours(|row| row.lat_us_p99, 2),
        ours(|row| row.lat_us_p9999, 2),
        ours(|row| row.lat_us_max, 2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    /// Files of one block, and of 5 blocks on average: 192 files are created, written and made
    /// durable, and 128 of them deleted.
    #[test]
    fn churn_deletes_twice_as_many_files_as_it_keeps() {
        for (scale, blocks) in [(0.002, 192), (0.05, 966)] {
            let churn = Workload::by_name("churn", scale).unwrap();
            assert_eq!(operations(&churn), 192 + blocks + 192 + 128);
        }
    }

    #[test]
    fn each_job_has_our_figures_and_the_published_ones_of_its_policy() {
        let job = |policy: &str, workers: u32, more: f64| Row {
            workload: "smallfiles".to_owned(),
            bw_mib_s: 700.0 + more,
            lat_us_mean: 0.5 + more,
            lat_us_p50: 0.25 + more,
            lat_us_p99: 2.0 + more,
            lat_us_p9999: 9.0 + more,
            lat_us_max: 50.0 + more,
            ..row(policy, workers, 6000.0 + more)
        };
        let rows = [job("linux-6.18:scan=optimized", 6, 0.0), job("rralloc-v2", 6, 1.0)];
        let table = &tables(&rows)[0];
        assert_eq!(
            table.rows[2],
            [
                "smallfiles",
                "regular (linux-6.18:scan=optimized)",
                "6",
                "700",
                "6000",
                "0.50",
                "2.00",
                "9.00",
                "50.00",
                "707",
                "181000",
                "2.03"
            ]
        );
        assert_eq!(
            table.rows[3],
            [
                "smallfiles",
                "rralloc (rralloc-v2)",
                "6",
                "701",
                "6001",
                "1.50",
                "3.00",
                "10.00",
                "51.00",
                "586",
                "150000",
                "2.18"
            ]
        );
        let nothing = ["-"; 6];
        let published = ["497", "496", "9190"];
        assert_eq!(
            table.rows[0],
            [&["seqwrite", "regular (linux-6.18:scan=optimized)", "6"][..], &nothing, &published].concat()
        );
        let name = "allocstress:fallocate=none";
        assert_eq!(table.rows[11], [&[name, "rralloc (rralloc-v2)", "48"][..], &nothing, &["-"; 3]].concat());
    }

    /// A regression: policies other than the published ones were measured but not shown, and one
    /// median covered several numbers of workers.
    #[test]
    fn every_policy_and_number_of_workers_has_a_row() {
        let job = |policy: &str, workers: u32, rate: f64| Row {
            workload: "smallfiles".to_owned(),
            ..row(policy, workers, rate)
        };
        let rows = [
            job("linux-6.18:scan=optimized", 2, 100.0),
            job("linux-6.18:scan=optimized", 4, 300.0),
            job("yard", 2, 500.0),
        ];
        let table = &tables(&rows)[0];
        let cell = |row: &[String], column: usize| row[column].clone();
        let of_job: Vec<_> = table
            .rows
            .iter()
            .filter(|row| row[0] == "smallfiles")
            .map(|row| [cell(row, 1), cell(row, 2), cell(row, 4), cell(row, 9)])
            .collect();
        assert_eq!(
            of_job,
            [
                ["regular (linux-6.18:scan=optimized)", "2", "100", "-"],
                ["regular (linux-6.18:scan=optimized)", "4", "300", "-"],
                ["regular (linux-6.18:scan=optimized)", "6", "-", "707"],
                ["rralloc (rralloc-v2)", "6", "-", "586"],
                ["yard", "2", "500", "-"],
            ]
        );
    }
}
