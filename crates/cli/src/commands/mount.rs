//! `blockyard mount`: mounts an image on this machine through FUSE.
//!
//! Without `--foreground` the program starts itself again. The child opens the image, mounts it,
//! reports that to the first process, and serves the mount in its own session. Errors before the
//! report go to the standard error of the first process, later ones to the log.

mod log;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blockyard_device::ImagePath;
use blockyard_fuse::{Handle, Mount, MountError, Options, Request, Serving, Unmounted, options_in_force};
use clap::builder::{OsStringValueParser, TypedValueParser};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{EXIT_OPERATIONAL, Output, UsageError, image};

/// The server's message to the process that started it, once the image is mounted.
const MOUNTED: &[u8] = b"mounted\n";
/// The name under which mount(8) calls this program for the type `fuse.blockyard`.
const HELPER: &str = "mount.fuse.blockyard";

/// Arguments of `blockyard mount`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 mounted (with --foreground: unmounted, and the image closed), 2 wrong usage, 8 the image cannot be \
                  opened, mounted, or closed. Called as mount.fuse.blockyard: 1 and 32, as in mount(8).",
    after_long_help = "Options are those of ext4 and FUSE: ro, noatime, relatime, strictatime, commit=SECONDS, policy=POLICY, \
                       nodelalloc, mb_optimize_scan=0|1, data=ordered|writeback|journal, errors=continue|remount-ro, allow_other, \
                       offset=BYTES, nodev, nosuid, noexec, remount (with ro, rw, nodev, \
                       nosuid, noexec). Options of ext4 that this mount lacks are refused by \
                       name.\n\n\
                       TERM, INT and HUP unmount; USR1 logs how many requests came and how long they took.\n\n\
                       Examples:\n  blockyard mount disk.img mnt\n  blockyard mount -o ro,noatime disk.img?offset=1048576 mnt\n  \
                       umount mnt\n\n\
                       Exit codes: 0 mounted (with --foreground: unmounted, and the image closed), 2 wrong usage, 8 the image cannot \
                       be opened, mounted, or closed. Called as mount.fuse.blockyard: 1 and 32, as in mount(8)."
)]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Mount options, comma-separated; may be given several times
    #[arg(short, long = "options", value_name = "OPTIONS", value_parser = text())]
    options: Vec<String>,
    /// Stay in the foreground until the image is unmounted
    #[arg(short, long)]
    foreground: bool,
    /// Log file [default: the terminal with --foreground, otherwise the system log]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Record the requests in FILE, as a trace in JSON Lines that `lab agree --trace` plays
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Started by another instance of this program, which waits for the message that the image is
    /// mounted
    #[arg(long, hide = true)]
    started: bool,
    /// Called by mount(8), which has its own exit codes
    #[arg(long, hide = true)]
    helper: bool,
    /// Called by `mount -f`: checks the arguments and mounts nothing
    #[arg(long, hide = true)]
    fake: bool,
}

/// Exit code of mount(8) for wrong usage.
pub(crate) const EXIT_HELPER_USAGE: u8 = 1;
/// Exit code of mount(8) if nothing was mounted.
pub(crate) const EXIT_HELPER_FAILED: u8 = 32;

fn text() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|given: OsString| {
        given.into_string().map_err(|given| format!("{}: not UTF-8", given.display()))
    })
}

/// Converts the arguments of a mount(8) helper, `IMAGE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]
/// [-t TYPE]`, to those of `blockyard mount`. `None` if we were not called by the helper's name.
pub(crate) fn of_helper(mut given: Vec<OsString>) -> Option<Vec<OsString>> {
    let name = given.first()?.clone();
    if std::path::Path::new(&name).file_name()? != HELPER {
        return None;
    }
    let mut arguments: Vec<OsString> = vec![name, "mount".into(), "--helper".into()];
    let mut rest = given.drain(1..);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-t" | "-N") => drop(rest.next()),
            Some(flags) if is_of_helpers(flags) => {
                if flags.contains('f') {
                    arguments.push("--fake".into());
                }
            }
            _ => arguments.push(argument),
        }
    }
    Some(arguments)
}

/// Whether an argument holds only flags that mount(8) gives to every helper: `s` (sloppy), `f`
/// (fake), `n` (not in mtab), `v` (verbose).
fn is_of_helpers(argument: &str) -> bool {
    argument
        .strip_prefix('-')
        .is_some_and(|letters| !letters.is_empty() && letters.chars().all(|letter| "sfnv".contains(letter)))
}

impl Args {
    /// Mounts, and either serves the mount or leaves that to another process.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let lists = self.option_lists();
        let options = Options::parse(lists.iter().map(String::as_str))
            .map_err(|error| UsageError::new(error.to_string()))?;
        if self.fake {
            return Ok(ExitCode::SUCCESS);
        }
        if options.remount {
            return self.remount();
        }
        if options.offset.is_some() && self.image.offset() != 0 {
            return Err(
                UsageError::new("the offset is given twice: in IMAGE, and by -o offset".to_owned()).into()
            );
        }
        // If one of these files is the image, opening it would truncate the image or append to it.
        for written in self.record.iter().chain(&self.log) {
            image::refuse_same(&self.image, written)?;
        }
        if self.foreground || self.started { self.serve(options) } else { self.start(output) }
    }

    fn start(self, output: &Output) -> Result<ExitCode> {
        let program = std::env::current_exe().context("the program's own file is not known")?;
        let mut command = Command::new(program);
        command.args(["mount", "--started"]);
        if output.quiet {
            command.arg("--quiet");
        }
        for options in &self.options {
            command.arg("-o").arg(options);
        }
        if let Some(log) = &self.log {
            command.arg("--log").arg(std::path::absolute(log)?);
        }
        if let Some(record) = &self.record {
            command.arg("--record").arg(std::path::absolute(record)?);
        }
        command.arg("--").arg(self.image_argument()).arg(&self.directory);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut said = Vec::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_end(&mut said)?;
        }
        if said == MOUNTED {
            return Ok(ExitCode::SUCCESS);
        }
        let status = child.wait()?;
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_OPERATIONAL);
        let code = if self.helper { EXIT_HELPER_FAILED } else { code };
        if let Some(signal) = status.signal() {
            bail!("{}: the serving process was ended by signal {signal}", self.image.display());
        }
        Ok(ExitCode::from(code))
    }

    /// The operand IMAGE, with its offset.
    fn image_argument(&self) -> OsString {
        let mut argument = self.image.file().as_os_str().to_owned();
        if self.image.offset() != 0 {
            argument.push(format!("?offset={}", self.image.offset()));
        }
        argument
    }

    fn serve(self, mut options: Options) -> Result<ExitCode> {
        if self.started {
            // In a session of its own, this process gets no signals of the terminal.
            rustix::process::setsid().context("cannot start a session")?;
        }
        log::begin(self.log.as_deref(), self.started)?;
        let offset = options.offset.unwrap_or(self.image.offset());
        let image = ImagePath::at(self.image.file(), offset);
        // Report early that a path cannot be an image, and say what to do instead.
        drop(image::device(&image, !options.read_only)?);
        options.offset = Some(offset);
        let request = Request {
            image: image.file().to_owned(),
            directory: self.directory.clone(),
            options,
            record: self.record,
        };
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
        let mount = Mount::new(&request).map_err(|error| named(error, &image))?;
        let handle = mount.handle();
        let serving = mount.spawn()?;
        if self.started {
            detach()?;
        }
        let ended = wait(serving, &handle, signals);
        if let Err(error) = &ended {
            log::error(&super::describe(error));
        }
        ended.map(|()| ExitCode::SUCCESS)
    }

    /// The values of `-o`. On a remount, `user_id` and `group_id` are left out: the kernel shows
    /// them for every FUSE mount, and mount(8) passes them on if fstab does not name the directory.
    fn option_lists(&self) -> Vec<String> {
        let is_remount = self.options.iter().flat_map(|list| list.split(',')).any(|word| word == "remount");
        let counts =
            |word: &&str| !is_remount || !(word.starts_with("user_id=") || word.starts_with("group_id="));
        let kept = |list: &String| list.split(',').filter(counts).collect::<Vec<_>>().join(",");
        self.options.iter().map(kept).collect()
    }

    /// Changes those options of a mount that the kernel can change without the server.
    fn remount(&self) -> Result<ExitCode> {
        let named = || self.directory.display().to_string();
        let directory = self.directory.canonicalize().with_context(named)?;
        let present = options_in_force(&directory).with_context(named)?;
        let parse = |more: &[String]| {
            let lists = std::iter::once(&*present).chain(more.iter().map(String::as_str));
            Options::parse(lists).map_err(|error| UsageError::new(error.to_string()))
        };
        let (before, options) = (parse(&[])?, parse(&self.option_lists())?);
        let plain = Options {
            remount: true,
            read_only: options.read_only,
            devices: options.devices,
            set_id: options.set_id,
            execution: options.execution,
            access_times: before.access_times,
            allow_other: before.allow_other,
            ..Options::default()
        };
        if plain != options {
            bail!(
                "{}: only ro, rw, nodev, nosuid and noexec can be changed while it is mounted: unmount it and mount it \
                 again",
                named()
            );
        }
        rustix::mount::mount_remount(&self.directory, options.mount_flags(), c"").with_context(named)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Adds the image to an error that does not name it.
fn named(error: MountError, image: &ImagePath) -> anyhow::Error {
    match error {
        MountError::Image(error) if error.path().is_none() => {
            anyhow::anyhow!("{}: {error}", image.display())
        }
        error => error.into(),
    }
}

/// Reports the mount to the waiting process, and detaches from the terminal.
fn detach() -> Result<()> {
    let mut stdout = std::io::stdout();
    // A failure is ignored, because the process that started this one may have ended.
    let _ = stdout.write_all(MOUNTED).and_then(|()| stdout.flush());
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    std::env::set_current_dir("/")?;
    Ok(())
}

/// The events that the serving process waits for.
enum News {
    Over(std::result::Result<(), MountError>),
    /// The serving thread panicked.
    Broken,
    Signal(i32),
}

/// Time between two checks whether the file system has failed.
const LOOK: Duration = Duration::from_secs(1);

/// Whether a failure of the file system has been logged, and whether the kernel shows the mount as
/// read-only because of it.
#[derive(Clone, Copy)]
enum Failure {
    Nothing,
    Logged,
    Shown,
}

impl Failure {
    /// Checks whether a failure has made the file system read-only. If so, logs that, and makes the
    /// kernel show the mount as read-only.
    fn look(self, handle: &Handle) -> Self {
        match self {
            Self::Shown => return self,
            Self::Nothing if !handle.has_failed() => return self,
            Self::Nothing => tracing::error!(
                directory = %handle.directory().display(),
                "an error turned the file system read-only: unmount it and run a check"
            ),
            Self::Logged => {}
        }
        // If the kernel refuses, as while files are open for writing, the next call tries again.
        if handle.show_read_only().is_ok() { Self::Shown } else { Self::Logged }
    }
}

fn wait(serving: Serving, handle: &Handle, mut signals: Signals) -> Result<()> {
    let (tell, news) = mpsc::channel();
    let ended = tell.clone();
    thread::spawn(move || {
        // The signal thread holds a sender too, so a panic here would not disconnect `news`.
        let over = panic::catch_unwind(AssertUnwindSafe(|| serving.wait()));
        ended.send(over.map_or(News::Broken, News::Over))
    });
    thread::spawn(move || signals.forever().try_for_each(|signal| tell.send(News::Signal(signal))));
    let mut failure = Failure::Nothing;
    loop {
        let came = match news.recv_timeout(LOOK) {
            Ok(came) => came,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                failure = failure.look(handle);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        match came {
            News::Over(ended) => return Ok(ended?),
            News::Broken => bail!("serving ended with an error of this program; run a check on the image"),
            News::Signal(SIGUSR1) => tracing::info!("{}", handle.report()),
            News::Signal(_) => match handle.unmount() {
                // The threads that receive requests end now. Then `Serving::wait` closes the image.
                Ok(Unmounted::Whole) => {}
                // The serving thread is closing the image already, and will send `News::Over`.
                Ok(Unmounted::InUse) if !handle.close()? => {}
                Ok(Unmounted::InUse) => return Ok(()),
                Err(error) => tracing::error!(%error, "could not unmount"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::of_helper;
    use std::ffi::OsString;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn mount_8_calls_us_by_the_name_of_the_link() {
        let given = words("/sbin/mount.fuse.blockyard /dev/x /mnt -n -o rw,noatime -t fuse.blockyard");
        let expected = words("/sbin/mount.fuse.blockyard mount --helper /dev/x /mnt -o rw,noatime");
        assert_eq!(of_helper(given), Some(expected));
        let given = words("/sbin/mount.fuse.blockyard /dev/x /mnt -sfv -o rw");
        let expected = words("/sbin/mount.fuse.blockyard mount --helper /dev/x /mnt --fake -o rw");
        assert_eq!(of_helper(given), Some(expected));
        assert_eq!(of_helper(words("blockyard mount a b")), None);
        assert_eq!(of_helper(Vec::new()), None);
    }
}
