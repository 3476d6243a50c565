//! Progress lines of a check for other programs, as e2fsck -C writes them: pass, current, largest,
//! device.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use blockyard_check::{Part, Step, Watch};

/// Writes a line whenever the percentage of a pass, rounded down, has grown.
struct Lines {
    file: File,
    device: String,
    /// The current part, and how many of its items are done. Locked while a line is written, so
    /// that lines of several threads stay in order.
    now: Mutex<(Part, u64)>,
}

/// A watch that writes to an open file descriptor of this process.
///
/// # Errors
/// The descriptor cannot be opened.
pub(super) fn watch(descriptor: u32, device: String) -> std::io::Result<Watch> {
    let file = File::options().write(true).open(format!("/dev/fd/{descriptor}"))?;
    let lines = Lines { file, device, now: Mutex::new((Part::Groups, 0)) };
    Ok(Watch::new(move |step| lines.tell(step)))
}

impl Lines {
    fn tell(&self, step: Step) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 != step.part {
            // Each part counts from 0. A repair checks more than once, so a part may come again.
            *now = (step.part, 0);
        }
        let before = now.1;
        now.1 += step.more;
        let (done, all) = (now.1, step.all.max(1));
        debug_assert!(done <= all, "{done} of {all} in {:?}", step.part);
        if before * 100 / all != done * 100 / all {
            // A failed write is ignored: the check goes on even if the reader is gone.
            let line = format!("{} {done} {all} {}\n", pass_of(step.part), self.device);
            let _ = (&self.file).write_all(line.as_bytes());
        }
    }
}

/// The pass of e2fsck that corresponds to a part.
const fn pass_of(part: Part) -> u8 {
    match part {
        Part::Inodes => 1,
        Part::Directories => 2,
        Part::Connectivity => 3,
        Part::Links => 4,
        Part::Groups => 5,
    }
}
