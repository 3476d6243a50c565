//! `kill -9` of the server at a random moment: what fsync made durable is there after recovery,
//! whether by our mount, by Linux or by e2fsck.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, mke2fs, require, run, wait_until};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, WaitOptions};

const BLOCKYARD: &str = env!("CARGO_BIN_EXE_blockyard");
/// The number of threads that write, each to its own files.
const WRITERS: usize = 3;

/// A foreground server that can be killed.
struct Server {
    child: Child,
    directory: PathBuf,
}

impl Server {
    fn start(image: &Path, directory: &Path) -> Self {
        let mut command = Command::new(BLOCKYARD);
        command.args(["mount", "--foreground"]).arg(image).arg(directory);
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let place = format!(" {} ", directory.display());
        wait_until("it is mounted", || fs::read_to_string("/proc/self/mounts").unwrap().contains(&place));
        Self { child, directory: directory.to_owned() }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        run("umount", &["-l", self.directory.to_str().unwrap()]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        run("umount", &["-l", self.directory.to_str().unwrap()]);
    }
}

/// A promise of durability: the first `len` bytes of a file.
#[derive(Clone, Debug)]
struct Fact {
    name: String,
    len: usize,
}

fn content(name: &str, len: usize) -> Vec<u8> {
    let seed = name.bytes().fold(7, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte));
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap() ^ seed).collect()
}

/// The latest promise for each file, of all writers.
type Facts = Arc<Mutex<Vec<Fact>>>;

fn note(facts: &Facts, name: &str, len: usize) {
    let mut facts = facts.lock().unwrap();
    facts.retain(|fact| fact.name != name);
    facts.push(Fact { name: name.to_owned(), len });
}

/// Creates files, rewrites each of them twice at a greater length, and records what each fsync
/// promised. Replaces every third file by a rename. Returns at the first error, or when `is_over`
/// is set.
fn write_until_it_ends(directory: &Path, writer: usize, facts: &Facts, is_over: &AtomicBool) {
    for number in 0.. {
        let name = format!("w{writer}-{number}");
        let Ok(file) = File::create_new(directory.join(&name)) else { return };
        for len in [100, 5_000, 40_000] {
            let done = file.write_all_at(&content(&name, len), 0).and_then(|()| file.sync_all());
            if done.is_err() || is_over.load(Ordering::Relaxed) {
                return;
            }
            note(facts, &name, len);
        }
        // The file that replaces this one has the same content. So whichever of the two files a
        // crash leaves under the name, the content is complete.
        let aside = directory.join(format!("w{writer}-aside"));
        if number % 3 == 0 && replace(&aside, &directory.join(&name), &content(&name, 40_000)).is_err() {
            return;
        }
    }
}

fn replace(aside: &Path, name: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(aside, name)
}

/// Starts [`WRITERS`] writers.
fn writers(directory: &Path, facts: &Facts, is_over: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let writer = |writer| {
        let (directory, facts, is_over) = (directory.to_owned(), Arc::clone(facts), Arc::clone(is_over));
        thread::spawn(move || write_until_it_ends(&directory, writer, &facts, &is_over))
    };
    (0..WRITERS).map(writer).collect()
}

/// Recovers an image with our mount, with Linux's or with e2fsck, depending on `round`. Then
/// checks that every promise was kept.
fn recover_and_check(image: &Path, directory: &Path, facts: &[Fact], round: usize) {
    match round % 3 {
        0 => {
            let mut again = Server::start(image, directory);
            check(directory, facts, "our mount");
            assert!(run("umount", &[directory.to_str().unwrap()]).status.success());
            again.child.wait().unwrap();
        }
        1 => check(LoopMount::new(image, "").unwrap().path(), facts, "Linux"),
        _ => {
            let repaired = run("e2fsck", &["-fy", image.to_str().unwrap()]);
            let code = repaired.status.code();
            assert!(matches!(code, Some(0 | 1)), "{}", String::from_utf8_lossy(&repaired.stdout));
            check(LoopMount::new(image, "ro").unwrap().path(), facts, "e2fsck");
        }
    }
    e2fsck_clean(image);
}

fn check(directory: &Path, facts: &[Fact], who: &str) {
    for fact in facts {
        let found =
            fs::read(directory.join(&fact.name)).unwrap_or_else(|error| panic!("{who}: {fact:?}: {error}"));
        assert!(found.len() >= fact.len, "{who}: {fact:?} has {} bytes", found.len());
        assert!(found[..fact.len] == content(&fact.name, fact.len), "{who}: {fact:?}");
    }
}

/// Makes a folder with the mount points `mnt` and `other`, and with an image of 64 MiB whose
/// journal has 4 MiB. Returns the folder, the image and `mnt`.
fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (image, directory) = (folder.path().join("image"), folder.path().join("mnt"));
    mke2fs(&image, &["-t", "ext4", "-J", "size=4"], "64M");
    fs::create_dir(&directory).unwrap();
    fs::create_dir(folder.path().join("other")).unwrap();
    (folder, image, directory)
}

fn can_mount() -> bool {
    require(&["root", "mke2fs", "e2fsck", "mount", "umount"])
}

#[test]
fn what_fsync_promised_outlives_the_server() {
    if !can_mount() {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(blockyard_testkit::seed(1));
    for round in 0..if full_matrix() { 200 } else { 6 } {
        let (_folder, image, directory) = place();
        let mut server = Server::start(&image, &directory);
        let (facts, is_over) = (Facts::default(), Arc::default());
        let writers = writers(&directory, &facts, &is_over);
        thread::sleep(Duration::from_millis(rng.random_range(20..600)));
        server.kill();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        recover_and_check(&image, &directory, &facts.lock().unwrap(), round);
    }
}

/// What the image holds while the server is stopped is what a crash of the server at that moment
/// would leave.
#[test]
fn a_copy_of_the_image_of_a_stopped_server_recovers() {
    if !can_mount() {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(blockyard_testkit::seed(2));
    for _ in 0..if full_matrix() { 10 } else { 1 } {
        copies_of_one_server(&mut rng);
    }
}

/// Stops one server five times to copy its image, lets it go on, and recovers each copy.
fn copies_of_one_server(rng: &mut ChaCha8Rng) {
    let (folder, image, directory) = place();
    let mut server = Server::start(&image, &directory);
    let (facts, is_over) = (Facts::default(), Arc::<AtomicBool>::default());
    let writers = writers(&directory, &facts, &is_over);
    let process = Pid::from_child(&server.child);
    for round in 0..5 {
        thread::sleep(Duration::from_millis(rng.random_range(20..200)));
        let promised = facts.lock().unwrap().clone();
        let copy = folder.path().join("copy");
        // While the server is stopped, start no process: when that process closed its copies of the
        // writers' files, the kernel would send requests to the stopped server.
        rustix::process::kill_process(process, Signal::STOP).unwrap();
        // The server's threads keep running until one of them has taken the signal.
        assert!(rustix::process::waitpid(Some(process), WaitOptions::UNTRACED).unwrap().is_some());
        let copied = fs::copy(&image, &copy);
        rustix::process::kill_process(process, Signal::CONT).unwrap();
        copied.unwrap();
        recover_and_check(&copy, &folder.path().join("other"), &promised, round);
    }
    is_over.store(true, Ordering::Relaxed);
    server.kill();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}
