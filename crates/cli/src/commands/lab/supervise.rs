//! A command that mounts, attaches and changes settings, run in a process of its own under one that
//! survives it.
//!
//! Key decision: whatever ends the work, INT and TERM at any moment included, somebody must be left
//! to take down what it made, and to do it before the shell goes on. So the work runs in a child,
//! and this process waits: for the child, for the programs and keepers that the child left behind,
//! and then it takes down what is noted (see `blockyard_lab::scratch`). Killed itself, it takes the
//! child along, and the next start takes everything down.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, Result};
use blockyard_lab::scratch::clean_leftovers;
use rustix::process::{Pid, Signal, WaitOptions, getppid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Holds the supervisor's process id in the child's environment.
const SUPERVISOR: &str = "BLOCKYARD_SUPERVISOR";

/// Does the work in a child of this process, or here where this is the child.
///
/// # Errors
/// Of the work; and when the child cannot be started.
pub(super) fn supervised(work: impl FnOnce() -> Result<ExitCode>) -> Result<ExitCode> {
    if is_child() {
        // Nobody takes down what is made when the supervisor is killed: so not a moment longer than
        // that.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        return if is_child() { work() } else { Ok(ExitCode::FAILURE) };
    }
    clean_leftovers();
    // What the child leaves when it is killed becomes ours, so that it can be waited for.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut signals = Signals::new(taken_signals()).context("take signals")?;
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
            // Asked again, it does not wait.
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

/// Whether a supervisor started this process and lives.
fn is_child() -> bool {
    let supervisor = std::env::var(SUPERVISOR).ok().and_then(|text| text.parse().ok());
    supervisor.is_some() && getppid().map(|pid| pid.as_raw_nonzero().get()) == supervisor
}

/// HUP unless it is to be ignored (nohup).
fn taken_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let ignores_hup = ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0);
    if ignores_hup { vec![SIGINT, SIGTERM] } else { vec![SIGINT, SIGTERM, SIGHUP] }
}

/// Ends programs that the child had started and waits for no more. Keepers, which have process
/// groups of their own, end by themselves when they have put everything back.
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

/// The end of the child as this process's end: its code, or the signal that ended it.
fn end(status: ExitStatus, signal: i32) -> ExitCode {
    if let Some(code) = status.code() {
        return ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX));
    }
    if signal != 0 {
        eprintln!("blockyard: interrupted; what was mounted, attached or set is as it was before");
        // Shells look at how a program ended.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    let signal = if signal == 0 { status.signal().unwrap_or(0) } else { signal };
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}
