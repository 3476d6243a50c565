//! E2: the three fio jobs under the regular policy and round robin, with fio's preallocation and without.
//!
//! The published runs had fio's default: the parent preallocates every file, one after the other, before a job starts,
//! so nothing is allocated in parallel. The arms without preallocation are ours.

mod published;

use crate::figures::row::{Interleave, Row};
use crate::figures::{Table, summary};
use crate::run::Plan;
use crate::run::Setup;
use crate::workload::Workload;
use published::ROUND_ROBIN;

const JOBS: [&str; 3] = ["seqwrite", "smallfiles", "allocstress"];
/// What the published names mean here.
const POLICIES: [(&str, &str); 2] = [("regular", "linux-6.18"), ("rralloc", "rralloc-v2")];

fn jobs() -> impl Iterator<Item = String> {
    let with = JOBS.iter().map(|&job| job.to_owned());
    with.chain(JOBS.iter().map(|&job| format!("{job}:fallocate=none")))
}

pub(crate) fn plans(setup: &Setup) -> Vec<Plan> {
    let policies = POLICIES.map(|(_, policy)| policy);
    let plan = |name: String| {
        let published = Workload::by_name(&name, 1.0).map_or(1, |workload| workload.published_workers());
        let workers = setup.workers.clone().unwrap_or(vec![published]);
        setup.plan(&name, &policies, &workers, Interleave::Threads)
    };
    jobs().map(plan).collect()
}

pub(crate) fn tables(rows: &[Row]) -> Vec<Table> {
    let heads = [
        "job",
        "policy",
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
    let title = "E2, fio jobs: bandwidth and latency of a write, ours and published";
    let mut table = Table::new(title, heads).with_keys(2);
    for name in jobs() {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.workload == name).collect();
        for (published_name, policy) in POLICIES {
            let ours = |value: fn(&Row) -> f64, digits: usize| {
                summary::median(&rows, policy, None, value)
                    .map_or("-".to_owned(), |spread| format!("{:.digits$}", spread.median))
            };
            let published =
                ROUND_ROBIN.iter().find(|row| row.workload == name && row.policy == published_name);
            let theirs = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
            table.push([
                name.clone(),
                format!("{published_name} ({policy})"),
                ours(|row| row.bw_mib_s, 0),
                ours(|row| row.ops_per_s, 0),
                ours(|row| row.lat_us_mean, 2),
                ours(|row| row.lat_us_p99, 2),
                ours(|row| row.lat_us_p9999, 2),
                ours(|row| row.lat_us_max, 2),
                theirs(published.map(|row| row.bandwidth_mib_s)),
                theirs(published.map(|row| row.iops)),
                theirs(published.map(|row| row.latency_us)),
            ]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::summary::tests::row;

    #[test]
    fn each_job_has_our_figures_and_the_published_ones_of_its_policy() {
        let job = |policy: &str, more: f64| Row {
            workload: "smallfiles".to_owned(),
            bw_mib_s: 700.0 + more,
            lat_us_mean: 0.5 + more,
            lat_us_p50: 0.25 + more,
            lat_us_p99: 2.0 + more,
            lat_us_p9999: 9.0 + more,
            lat_us_max: 50.0 + more,
            ..row(policy, 2, 6000.0 + more)
        };
        let rows = [job("linux-6.18", 0.0), job("rralloc-v2", 1.0)];
        let table = &tables(&rows)[0];
        assert_eq!(
            table.rows[2],
            [
                "smallfiles",
                "regular (linux-6.18)",
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
        assert_eq!(table.rows[0], [&["seqwrite", "regular (linux-6.18)"][..], &nothing, &published].concat());
        let name = "allocstress:fallocate=none";
        assert_eq!(table.rows[11], [&[name, "rralloc (rralloc-v2)"][..], &nothing, &["-"; 3]].concat());
    }
}
