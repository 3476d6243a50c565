//! Progress lines of a check for other programs, as e2fsck -C writes them: pass, current, largest,
//! device.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use blockyard_check::{Part, Step, Watch};

/// Writes a line for each further percent of a pass.
struct Lines {
    file: File,
    device: String,
    /// Progress in each part. Relaxed: only the lines depend on it.
    done: [AtomicU64; 5],
}

/// A watch that writes to an open file descriptor of this process.
///
/// # Errors
/// The descriptor cannot be opened.
pub(super) fn watch(descriptor: u32, device: String) -> std::io::Result<Watch> {
    let file = File::options().write(true).open(format!("/dev/fd/{descriptor}"))?;
    let lines = Lines { file, device, done: Default::default() };
    Ok(Watch::new(move |step| lines.tell(step)))
}

impl Lines {
    fn tell(&self, step: Step) {
        let (pass, counter) = match step.part {
            Part::Inodes => (1, &self.done[0]),
            Part::Directories => (2, &self.done[1]),
            Part::Connectivity => (3, &self.done[2]),
            Part::Links => (4, &self.done[3]),
            Part::Groups => (5, &self.done[4]),
        };
        let before = counter.fetch_add(step.more, Ordering::Relaxed);
        let (done, all) = (before + step.more, step.all.max(1));
        if before * 100 / all != done * 100 / all {
            // In one write, because several threads report. A reader that is gone does not stop the
            // check.
            let line = format!("{pass} {done} {all} {}\n", self.device);
            let _ = (&self.file).write_all(line.as_bytes());
        }
        if done >= all {
            // A repair checks more than once, and each check counts from 0.
            counter.store(0, Ordering::Relaxed);
        }
    }
}
