//! The plans of an experiment from what they have in common.

use super::{ImageSource, Plan};
use crate::device_model::DeviceModel;
use crate::figures::row::Interleave;
use crate::runner::Limit;
use crate::workload::Workload;

/// What the cells of an experiment have in common.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Factor on the published file sizes.
    pub scale: f64,
    /// Wall-clock time of a cell that does not end by itself.
    pub limit: Limit,
    /// Numbers of workers of the tables over workers; `None`: the published ones.
    pub workers: Option<Vec<u32>>,
    /// Repetitions.
    pub repeat: u32,
    /// Seed.
    pub seed: u64,
    /// Whether the allocator takes the device for one with seek times.
    pub rotational: bool,
    /// Arms instead of the published ones, where an experiment takes them.
    pub policies: Option<Vec<String>>,
    /// Models of devices to run on, beside memory or instead.
    pub devices: Vec<DeviceModel>,
    /// The image; `None`: in memory, as large as the published one.
    pub image: Option<ImageSource>,
}

impl Setup {
    /// The plan of one of its workloads.
    pub(crate) fn plan(
        &self,
        workload: &str,
        policies: &[impl AsRef<str>],
        workers: &[u32],
        interleave: Interleave,
    ) -> Plan {
        // Operations on files of 1 MiB are what fallocate2 is published for; only the large files
        // are made smaller.
        let scale = if workload == "fallocate2" { 1.0 } else { self.scale };
        let workload = Workload::by_name(workload, scale).expect("the experiments name workloads that exist");
        let image = self.image.clone();
        let policies: Vec<&str> = policies.iter().map(AsRef::as_ref).collect();
        Plan {
            image: image.unwrap_or_else(|| ImageSource::memory(workload.published_device(), self.seed)),
            limit: if workload.ends_by_itself() {
                Limit { time: None, ops_per_worker: None, fsync_end: false }
            } else {
                self.limit
            },
            workers: workers.to_vec(),
            interleave,
            repeat: self.repeat,
            seed: self.seed,
            rotational: self.rotational,
            ..Plan::new(workload, &policies)
        }
    }
}
