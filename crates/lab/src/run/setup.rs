//! Makes the plans of an experiment from their common settings.

use super::{ImageSource, Plan};
use crate::device_model::DeviceModel;
use crate::figures::row::Interleave;
use crate::runner::Limit;
use crate::workload::Workload;

/// Common settings of the cells of an experiment.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Factor for the published file sizes.
    pub scale: f64,
    /// Limit of the cells that do not end on their own.
    pub limit: Limit,
    /// Numbers of workers for tables by number of workers; `None`: those of the experiment.
    pub workers: Option<Vec<u32>>,
    /// Repetitions.
    pub repeat: u32,
    /// Seed.
    pub seed: u64,
    /// Whether the allocator assumes a device with seek times.
    pub rotational: bool,
    /// Arms that the user chose; `None`: those of the experiment. E1 runs them in addition to its
    /// own arms, E2 instead of its own. The experiment `yard` compares the policy `yard` with them.
    pub policies: Option<Vec<String>>,
    /// Device models that the user chose. E2 runs on them instead of memory, and the experiment
    /// `yard` instead of its own device models.
    pub devices: Vec<DeviceModel>,
    /// Whether to vary the constants of the modelled machines instead of measuring the usual cells;
    /// E1 only.
    pub sensitivity: bool,
    /// The image; `None`: an image in memory, as large as the published one.
    pub image: Option<ImageSource>,
}

impl Setup {
    /// The plan of one workload of the experiment.
    pub(crate) fn plan(
        &self,
        workload: &str,
        policies: &[impl AsRef<str>],
        workers: &[u32],
        interleave: Interleave,
    ) -> Plan {
        // The published fallocate2 works on files of 1 MiB; only large files are scaled down.
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
