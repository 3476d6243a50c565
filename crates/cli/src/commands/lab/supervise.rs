//! Supervises a command that mounts images, attaches loop devices or changes settings of the
//! kernel: the command runs in a child process, and its supervisor, this process, outlives it.
//!
//! Key decision: whatever ends the work, even a signal, some process must be left to undo the
//! changes before the shell continues. So the work runs in a child. The supervisor waits for the
//! child, for programs that the child started, and for the child's keepers: shell processes that
//! undo mounts and settings once the child is gone. Then the supervisor undoes what is still noted
//! (see `blockyard_lab::scratch`). If the supervisor is killed, the child is killed too, and the
//! next start undoes what is left.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, Result};
use blockyard_lab::scratch::clean_leftovers;
use rustix::process::{Pid, Signal, WaitOptions, getppid, kill_process};
use signal_hook::iterator::Signals;

/// The environment variable with the supervisor's process id, for the child.
const SUPERVISOR: &str = "BLOCKYARD_SUPERVISOR";

/// Does the work in a child of this process, or right here if this is the child.
///
/// # Errors
/// Errors of the work; or the child cannot be started.
pub(super) fn supervised(work: impl FnOnce() -> Result<ExitCode>) -> Result<ExitCode> {
    if is_child() {
        // Die with the supervisor, because nobody else would undo the changes.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        return if is_child() { work() } else { Ok(ExitCode::FAILURE) };
    }
    clean_leftovers();
    // Become the parent of processes that a killed child leaves, to be able to wait for them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut signals = Signals::new(crate::commands::interrupt::taken_signals()).context("take signals")?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "blockyard".into());
    let mut command = Command::new(std::env::current_exe().context("the program itself")?);
    std::os::unix::process::CommandExt::arg0(&mut command, name);
    command.args(arguments).env(SUPERVISOR, std::process::id().to_string());
    let mut child = command.spawn().context("start the process that works")?;
    let ended_by = Arc::new(AtomicI32::new(0));
    let (handle, taken, pid) = (signals.handle(), Arc::clone(&ended_by), Pid::from_child(&child));
    let listener = std::thread::spawn(move || {
        for signal in signals.forever() {
            // A second signal kills the child at once.
            let before = taken.swap(signal, Ordering::Relaxed);
            let _ = kill_process(pid, if before == 0 { Signal::TERM } else { Signal::KILL });
        }
    });
    let status = child.wait().context("wait for the process that works")?;
    if status.signal().is_some() {
        end_programs();
    }
    while matches!(rustix::process::wait(WaitOptions::empty()), Ok(_) | Err(rustix::io::Errno::INTR)) {}
    clean_leftovers();
    handle.close();
    let _ = listener.join();
    Ok(end(status, ended_by.load(Ordering::Relaxed)))
}

/// Whether a supervisor started this process and is still alive.
fn is_child() -> bool {
    let supervisor = std::env::var(SUPERVISOR).ok().and_then(|text| text.parse().ok());
    supervisor.is_some() && getppid().map(|pid| pid.as_raw_nonzero().get()) == supervisor
}

/// Ends programs that the child had started and no longer waits for. Keepers have their own process
/// groups, and end by themselves once they have restored everything.
fn end_programs() {
    let own = rustix::process::getpgrp();
    let path = format!("/proc/self/task/{}/children", rustix::process::getpid().as_raw_nonzero());
    let children = std::fs::read_to_string(path).unwrap_or_default();
    for pid in children.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)) {
        if rustix::process::getpgid(Some(pid)).is_ok_and(|group| group == own) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Ends this process as the child ended.
///
/// - If the child exited: with its exit code.
/// - If a signal ended the child, and this process took a signal: by the signal that it took.
/// - If a signal ended the child, and this process took none: with 128 plus the child's signal.
fn end(status: ExitStatus, signal: i32) -> ExitCode {
    if let Some(code) = status.code() {
        return ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX));
    }
    if signal != 0 {
        eprintln!("blockyard: interrupted; what was mounted, attached or set is as it was before");
        // End by the signal itself, because shells tell that from an exit code.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    let signal = if signal == 0 { status.signal().unwrap_or(0) } else { signal };
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}
