//! The published workload `append64` as pure allocation: each of 64 CPUs appends to its own file,
//! up to 1 GiB. The policies to compare are given on the command line.
//!
//! Run it with `cargo run --release -p blockyard-lab --example append64 --` and the arguments
//! `linux-6.16,linux-6.18,yard [lockstep] [blocks]`.

#![allow(clippy::as_conversions)]

use blockyard_alloc::Policy;
use blockyard_lab::overlap::{Interleave, OverlapRun, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arms = arguments.first().map_or("linux-6.16,linux-6.18,yard", String::as_str);
    let lockstep = arguments.iter().any(|argument| argument == "lockstep");
    let interleave = if lockstep { Interleave::Lockstep } else { Interleave::Overlap };
    let blocks = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(262_144);
    println!("| policy | extents/file | most | free extents | entries/request | md/request | seconds |");
    for policy in Policy::parse_arms(arms)? {
        let started = std::time::Instant::now();
        let run_of = OverlapRun { blocks_per_file: blocks, ..OverlapRun::append64(policy, interleave) };
        let figures = run(&run_of)?;
        let each = |n: u64| format!("{:.2}", n as f64 / figures.requests as f64);
        println!(
            "| {policy} | {:.1} | {} | {} | {} | {} | {:.1} |",
            figures.extents_per_file,
            figures.extents_per_file_max,
            figures.free_extents,
            each(figures.index_entries),
            each(figures.locks.shared_acquisitions()),
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
