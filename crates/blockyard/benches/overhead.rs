//! The cost of the library over the engine: `File::write_at` compared with the engine's own call,
//! and `open` of a deep path compared with looking up each of its names in the engine. Each round
//! measures both, in alternating order. Prints medians; there is no pass or fail.

#![allow(clippy::as_conversions, clippy::cast_precision_loss, clippy::unwrap_used)]

use std::time::Instant;

use blockyard::engine::OpContext;
use blockyard::{File, FileSystem, ImageOptions, OpenOptions};

const ROUNDS: usize = 31;
const CALLS: u64 = 20_000;
const DEPTH: usize = 10;

/// Nanoseconds per call, averaged over `CALLS` calls.
fn timed(mut call: impl FnMut(u64)) -> f64 {
    let began = Instant::now();
    for number in 0..CALLS {
        call(number);
    }
    began.elapsed().as_nanos() as f64 / CALLS as f64
}

/// Runs `ours` and `base` in each round; which one comes first alternates. Prints the median of
/// each, and the median and quartiles of their ratio.
fn compare(name: &str, mut ours: impl FnMut() -> f64, mut base: impl FnMut() -> f64) {
    let mut rows: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|round| {
            if round % 2 == 0 {
                let ours = ours();
                (ours, base())
            } else {
                let base = base();
                (ours(), base)
            }
        })
        .collect();
    let mut ratios: Vec<f64> = rows.iter().map(|(ours, base)| ours / base).collect();
    ratios.sort_by(f64::total_cmp);
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ours = rows[ROUNDS / 2].0;
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    let base = rows[ROUNDS / 2].1;
    let (low, mid, high) = (ratios[ROUNDS / 4], ratios[ROUNDS / 2], ratios[ROUNDS * 3 / 4]);
    println!("{name}: {ours:.0} ns, engine {base:.0} ns, ratio {mid:.3} ({low:.3} to {high:.3})");
}

fn write(fs: &FileSystem, file: &File, len: usize) {
    let bytes = vec![7; len];
    let blocks = (16 << 20) / len as u64;
    let id = file.id();
    for number in 0..blocks {
        file.write_at(&bytes, number * len as u64).unwrap();
    }
    compare(
        &format!("write_at of {len} bytes"),
        || timed(|number| assert_eq!(file.write_at(&bytes, number % blocks * len as u64).unwrap(), len)),
        || {
            fs.with_engine(|engine, _| {
                Ok(timed(|number| {
                    let offset = number % blocks * len as u64;
                    engine.write_some(&OpContext::system(), id, offset, &bytes).unwrap();
                }))
            })
            .unwrap()
        },
    );
}

fn open(fs: &FileSystem) {
    let names: Vec<String> = (0..DEPTH).map(|number| format!("directory-{number}")).collect();
    let path = names.join("/");
    fs.create_dir_all(&path).unwrap();
    let file = format!("{path}/file");
    fs.write(&file, "text").unwrap();
    compare(
        &format!("open and drop at depth {DEPTH}"),
        || timed(|_| drop(fs.open(&file).unwrap())),
        || {
            fs.with_engine(|engine, _| {
                Ok(timed(|_| {
                    let mut at = engine.identify(blockyard::InodeNr::ROOT).unwrap().inode;
                    for name in &names {
                        at = engine.find(at, name.as_bytes()).unwrap().inode;
                    }
                    engine.find(at, b"file").unwrap();
                }))
            })
            .unwrap()
        },
    );
}

fn main() {
    let fs = ImageOptions::new().make_in_memory(256 << 20).unwrap();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "file").unwrap();
    for len in [512, 4096, 65536] {
        write(&fs, &file, len);
    }
    open(&fs);
}
