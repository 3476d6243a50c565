//! Stops the kernel's periodic write-back, so that data is written back where a trace asks for it.
//! If an operation of the trace starts the kernel's flusher, the flusher runs on the first CPU.
//!
//! Key decision: a small shell process, the keeper, changes the settings. It waits for its turn
//! (one comparison at a time on a machine) and ignores the terminal's signals. The keeper restores
//! all settings when its input ends: after the comparison, after an error or a panic, and when this
//! process is killed, because then the pipe closes, too.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, ensure};
use blockyard_lab::scratch::settings_note;

/// The keeper's script. `$1` is the file in which the keeper notes the old settings, so that the
/// next keeper can restore them if this one is killed.
///
/// The lock is on `/proc/sys/vm`, not on the note, because processes with different directories for
/// temporary files have different notes. Without a common lock, the second process would save the
/// changed settings as the ones to restore.
///
/// If the process that started the keeper ends while the keeper waits for the lock, the keeper
/// writes "ready" to a closed pipe. The keeper must survive that write, so that it restores
/// everything.
const KEEPER: &str = r#"
trap '' INT TERM HUP QUIT PIPE
exec 9< /proc/sys/vm || exit 1
flock 9 || exit 1
vm=/proc/sys/vm
queue=/sys/devices/virtual/workqueue/writeback/cpumask
restore() {
    while read -r file value; do echo "$value" > "$file"; done < "$1"
    rm -f "$1"
}
pair() {
    bytes=$(cat $vm/$1_bytes)
    if [ "$bytes" -gt 0 ]; then echo "$vm/$1_bytes $bytes"; else echo "$vm/$1_ratio $(cat $vm/$1_ratio)"; fi
}
if [ -s "$1" ]; then restore "$1"; fi
{
    pair dirty
    pair dirty_background
    for name in dirty_expire_centisecs dirty_writeback_centisecs; do echo "$vm/$name $(cat $vm/$name)"; done
    [ -e $queue ] && echo "$queue $(cat $queue)"
} > "$1.new"
mv "$1.new" "$1" || exit 1
echo $((8 << 30)) > $vm/dirty_bytes && echo $((6 << 30)) > $vm/dirty_background_bytes &&
    echo 8640000 > $vm/dirty_expire_centisecs && echo 0 > $vm/dirty_writeback_centisecs && echo ready
[ -e $queue ] && echo 1 > $queue
while read -r word; do :; done
restore "$1"
"#;

/// The running keeper. There is no periodic write-back until this value is dropped.
pub(super) struct Quiet {
    process: Child,
    /// Closed to end the keeper.
    words: Option<ChildStdin>,
}

impl Quiet {
    /// Waits until no other comparison runs on this machine, then stops periodic write-back.
    ///
    /// # Errors
    /// When the shell cannot be started, or cannot change the settings.
    pub(super) fn start() -> Result<Self> {
        let mut process = Command::new("sh")
            .args(["-c", KEEPER, "blockyard-agree"])
            .arg(settings_note()?)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a shell that keeps the write-back settings")?;
        let words = process.stdin.take();
        let answers = process.stdout.take().context("the keeper has an output")?;
        let quiet = Self { process, words };
        let mut line = String::new();
        BufReader::new(answers).read_line(&mut line).context("the keeper is gone")?;
        ensure!(line.trim_end() == "ready", "the write-back settings under /proc/sys/vm cannot be changed");
        Ok(quiet)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.words = None;
        // The keeper restores the settings before it ends.
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    /// SIGPIPE does not kill the keeper. If it did, the changed settings would stay until the next
    /// keeper restored them. A keeper with another note would even save them as the original ones.
    #[test]
    fn a_keeper_whose_owner_is_gone_lives_to_put_everything_back() {
        if !blockyard_testkit::require(&["root"]) {
            return;
        }
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "blockyard-agree"])
            .arg(settings_note().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop((keeper.stdout.take(), keeper.stdin.take()));
        assert_eq!(keeper.wait().unwrap().signal(), None);
    }
}
