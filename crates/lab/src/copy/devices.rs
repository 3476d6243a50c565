//! How long devices need after a copy to read all files back, to walk the tree, and to check the
//! image.
//!
//! The reads of the walk and of the check are recorded; those of the files follow from their
//! extents. A model of a host with a page cache turns these reads into requests, which are replayed
//! on models of a disk and an SSD. CPU time is left out.

use std::sync::Arc;

use anyhow::Result;
use blockyard_device::BlockDevice;
use blockyard_device::modelled::{ModelParameters, replay};
use blockyard_disk::num::{count_as_f64, u64_from_usize};
use blockyard_inspect::reader::Reader;
use blockyard_inspect::scan::{each_file, has_content};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::recorded_reads::{in_one_thread, recorded_reads};
use crate::workload::MIB;

/// The disk and the SSD.
const MODELS: [&str; 2] = ["desktop-7200-2009", "sata-ssd-2018"];

/// The figures of one way of reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Requests to the device.
    pub reads: u64,
    /// MiB that they read.
    pub read_mb: f64,
    /// Requests that do not begin where the previous one ended.
    pub seeks: u64,
    /// Mean distance of these seeks in MiB.
    pub seek_mib_mean: f64,
    /// Seconds on the disk model, one request at a time.
    pub hdd_s: f64,
    /// Seconds on the SSD model, one request at a time.
    pub ssd_s: f64,
}

/// The readings of one image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Readings {
    /// The content of all files, file by file in the order of a walk.
    pub read_back: Reading,
    /// Names and inodes of the whole tree.
    pub walk: Reading,
    /// What our checker reads.
    pub check: Reading,
}

impl Readings {
    /// Reads an image in all three ways.
    ///
    /// # Errors
    /// Those of the image.
    pub(super) fn of(device: &Arc<dyn BlockDevice>) -> Result<Self> {
        let size = device.size();
        let read_back = Reading::of(&content(device)?, size)?;
        let (walk, ()) = recorded_reads(device, |device| walk(&device))?;
        let (check, _) =
            recorded_reads(device, |device| Ok(blockyard_check::check(&*device, &in_one_thread())?))?;
        let walk = Reading::of(&walk, size)?;
        Ok(Self { read_back, walk, check: Reading::of(&check, size)? })
    }
}

impl Reading {
    fn of(reads: &[(u64, u64)], size: u64) -> Result<Self> {
        let requests = Host::default().asked_of_disk(reads.iter().copied());
        let (mut end, mut seeks, mut distance, mut bytes) = (0, 0, 0, 0);
        for request in &requests {
            if request.offset != end {
                seeks += 1;
                distance += request.offset.abs_diff(end);
            }
            end = request.end();
            bytes += request.length;
        }
        let seconds = |model: &str| -> Result<f64> {
            let model = ModelParameters::named(model)?.model(size)?;
            Ok(replay(model, &requests, 1).elapsed.as_secs_f64())
        };
        Ok(Self {
            reads: u64_from_usize(requests.len()),
            read_mb: count_as_f64(bytes) / count_as_f64(MIB),
            seeks,
            seek_mib_mean: count_as_f64(distance) / count_as_f64(MIB) / count_as_f64(seeks.max(1)),
            hdd_s: seconds(MODELS[0])?,
            ssd_s: seconds(MODELS[1])?,
        })
    }
}

/// First byte and length of every extent with file content, file by file.
fn content(device: &Arc<dyn BlockDevice>) -> Result<Vec<(u64, u64)>> {
    let reader = Reader::open(Arc::clone(device))?;
    let block = u64_from_usize(reader.superblock().geometry().block_size());
    let mut pieces = Vec::new();
    let visit = &mut |_: &[u8], inode: &_, records: &[blockyard_inspect::frag::file::Record]| {
        if has_content(inode) {
            let placed = records.iter().filter(|record| record.length > 0);
            pieces.extend(placed.map(|record| (record.physical * block, record.length * block)));
        }
        Ok::<_, anyhow::Error>(())
    };
    each_file(&reader, b"", reader.root()?, visit)?;
    Ok(pieces)
}

/// Reads every name and inode.
fn walk(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let reader = Reader::open(Arc::clone(device))?;
    let mut open = vec![reader.root()?];
    while let Some(directory) = open.pop() {
        for entry in reader.listed(&directory)? {
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let inode = reader.inode(entry.inode)?;
            if inode.is_directory() {
                open.push(inode);
            }
        }
    }
    Ok(())
}
