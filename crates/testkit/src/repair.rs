//! Runs `e2fsck -fy` and collects the codes of the problems that it found.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// What a repair did.
#[derive(Clone, Debug)]
pub struct Repair {
    /// e2fsck's exit code: 0 if there was nothing to do, 1 if everything was corrected; `None` when
    /// a signal ended e2fsck.
    pub exit: Option<i32>,
    /// Codes of the problems, such as `0x05000f`.
    pub codes: BTreeSet<String>,
    /// What e2fsck printed on standard output.
    pub output: String,
}

impl Repair {
    /// Whether e2fsck did only what it also has to do after a crash of Linux: replay the journal,
    /// process orphans, correct the superblock's counts of free blocks and free inodes (which are
    /// not kept exact), and clear the flag of an orphan file that is empty.
    #[must_use]
    pub fn is_recovery_only(&self) -> bool {
        let harmless = ["0x05000f", "0x05000d", "0x000020", "0x06000d"];
        matches!(self.exit, Some(0 | 1)) && self.codes.iter().all(|code| harmless.contains(&code.as_str()))
    }
}

/// Repairs an image with e2fsck, which replays the journal first. `journal` is the external journal
/// if there is one.
///
/// # Panics
/// When e2fsck cannot be run.
#[must_use]
pub fn repair(image: &Path, journal: Option<&Path>) -> Repair {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (config, log) = (scratch.path().join("e2fsck.conf"), scratch.path().join("problems"));
    let text = format!("[options]\nproblem_log_filename = {}\n", log.display());
    std::fs::write(&config, text).expect("the scratch directory is writable");
    let mut command = Command::new("e2fsck");
    // Linux leaves extent trees deeper than necessary, and so do we. Flattening them is no repair.
    command.args(["-fy", "-E", "no_optimize_extents"]);
    if let Some(journal) = journal {
        command.arg("-j").arg(journal);
    }
    let output = command.arg(image).env("E2FSCK_CONFIG", &config).output().expect("e2fsck runs");
    let found = std::fs::read_to_string(&log).unwrap_or_default();
    let codes = found.split("<problem code=\"").skip(1).filter_map(|rest| rest.split('"').next());
    Repair {
        exit: output.status.code(),
        codes: codes.map(str::to_owned).collect(),
        output: String::from_utf8_lossy(&output.stdout).into_owned(),
    }
}
