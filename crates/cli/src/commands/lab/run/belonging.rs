//! Which options of `lab run` each workload and experiment takes.

use anyhow::Result;
use blockyard_lab::experiment::Experiment;

use super::{Args, IN_PROCESS, refuse_ignored};

impl Args {
    /// Refuses every option that the chosen workload or experiment would ignore.
    pub(super) fn ensure_all_belong(&self) -> Result<()> {
        let name = self.workload.as_str();
        let is_experiment = Experiment::by_name(name).is_some();
        let is_own = !is_experiment && !matches!(name, "copy" | "e3" | "e4");
        let is_varied = name == "e1" && self.sensitivity;
        let is_copy = name == "copy";
        // `e1 --sensitivity` and `e1-patches` run only in virtual time, on a modelled file system,
        // so they take no image, and repetitions would give the same figures.
        let has_cells = is_own || (is_experiment && !is_varied && name != "e1-patches");
        let has_image = has_cells || is_copy;
        let is_modelled = name == "e2" && !self.device.is_empty();
        let options = [
            ("--workers", self.workers.is_some(), is_own || is_experiment),
            ("--cpus", self.cpus.is_some(), is_own || is_copy),
            ("--interleave", self.interleave.is_some(), is_own),
            ("--machine", self.machine.is_some(), is_own),
            ("--device", !self.device.is_empty(), is_own || matches!(name, "e2" | "yard")),
            ("--keep-requests", self.keep_requests.is_some(), is_own),
            ("--keep-operations", self.keep_operations.is_some(), is_own),
            ("--memory", self.memory.is_some(), has_image),
            ("--image-in", self.image_in != IN_PROCESS, has_image),
            ("--dirty-limit", self.dirty_limit.is_some(), is_own),
            ("--fsync-end", self.fsync_end, is_own),
            ("--mkfs", self.mkfs.is_some(), has_image),
            ("--image", self.image.is_some(), has_image),
            ("--in-place", self.in_place, is_own),
            ("--journal", !self.journal.is_empty(), is_own),
            ("--seconds", self.seconds.is_some(), has_cells && !is_modelled),
            ("--ops", self.ops.is_some(), is_own || is_experiment || name == "e3"),
            ("--repeat", self.repeat > 1, has_cells),
            ("--tree", self.tree.is_some(), is_copy),
            ("--sensitivity", self.sensitivity, matches!(name, "e1" | "e3" | "copy")),
            ("--copies", self.copies.is_some(), is_copy),
            ("--beside", self.beside.is_some(), is_own),
        ];
        let ignored = options.iter().filter(|(_, is_given, belongs)| *is_given && !belongs);
        let ignored: Vec<&str> = ignored.map(|(option, ..)| *option).collect();
        let way = match (is_varied, is_modelled) {
            (true, _) => " --sensitivity",
            (_, true) => " --device",
            _ => "",
        };
        refuse_ignored(&format!("{name}{way}"), &ignored)
    }
}
