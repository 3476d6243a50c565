//! `kill -9` of the server at a random moment: what was made durable is there after recovery by us, by Linux, and by e2fsck.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use blockyard_testkit::{LoopMount, e2fsck_clean, full_matrix, mke2fs, require, run, wait_until};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const BLOCKYARD: &str = env!("CARGO_BIN_EXE_blockyard");
/// Writers, each with files of its own.
const WRITERS: usize = 3;

/// A server in the foreground that can be killed.
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
        // One that is killed already stays so.
        let _ = self.child.kill();
        let _ = self.child.wait();
        run("umount", &["-l", self.directory.to_str().unwrap()]);
    }
}

/// What somebody was told is durable: a file and its first bytes.
#[derive(Clone, Debug)]
struct Fact {
    name: String,
    len: usize,
}

fn content(name: &str, len: usize) -> Vec<u8> {
    let seed = name.bytes().fold(7, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte));
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap() ^ seed).collect()
}

/// Makes files, appends to them, renames some, and notes what each fsync promised; ends with the first error.
fn write_until_it_ends(directory: &Path, writer: usize) -> Vec<Fact> {
    let mut facts = Vec::new();
    for number in 0.. {
        let name = format!("w{writer}-{number}");
        let Ok(file) = File::create_new(directory.join(&name)) else { return facts };
        for len in [100, 5_000, 40_000] {
            let bytes = content(&name, len);
            let done = file.write_all_at(&bytes, 0).and_then(|()| file.sync_all());
            if done.is_err() {
                return facts;
            }
            facts.retain(|fact: &Fact| fact.name != name);
            facts.push(Fact { name: name.clone(), len });
        }
        if number % 3 == 0 {
            // Written aside and renamed over: the old or the new content is there, whole.
            let aside = directory.join(format!("w{writer}-aside"));
            let replaced = OpenOptions::new().write(true).create(true).truncate(true).open(&aside).and_then(
                |mut file| {
                    file.write_all(&content(&name, 40_000))?;
                    file.sync_all()?;
                    fs::rename(&aside, directory.join(&name))
                },
            );
            if replaced.is_err() {
                return facts;
            }
        }
    }
    facts
}

fn check(directory: &Path, facts: &[Fact], who: &str) {
    for fact in facts {
        let found =
            fs::read(directory.join(&fact.name)).unwrap_or_else(|error| panic!("{who}: {fact:?}: {error}"));
        assert!(found.len() >= fact.len, "{who}: {fact:?} has {} bytes", found.len());
        assert!(found[..fact.len] == content(&fact.name, fact.len), "{who}: {fact:?}");
    }
}

#[test]
fn what_fsync_promised_outlives_the_server() {
    if !require(&["root", "mke2fs", "e2fsck", "mount", "umount"]) {
        return;
    }
    let seed = blockyard_testkit::seed(1);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for round in 0..if full_matrix() { 200 } else { 6 } {
        let folder = tempfile::tempdir().unwrap();
        let (image, directory) = (folder.path().join("image"), folder.path().join("mnt"));
        mke2fs(&image, &["-t", "ext4", "-J", "size=4"], "64M");
        fs::create_dir(&directory).unwrap();
        let mut server = Server::start(&image, &directory);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let directory = directory.clone();
                thread::spawn(move || write_until_it_ends(&directory, writer))
            })
            .collect();
        thread::sleep(Duration::from_millis(rng.random_range(20..600)));
        server.kill();
        let facts: Vec<Fact> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        match round % 3 {
            0 => {
                let mut again = Server::start(&image, &directory);
                check(&directory, &facts, "our mount");
                assert!(run("umount", &[directory.to_str().unwrap()]).status.success());
                again.child.wait().unwrap();
            }
            1 => check(LoopMount::new(&image, "").unwrap().path(), &facts, "Linux"),
            _ => {
                let repaired = run("e2fsck", &["-fy", image.to_str().unwrap()]);
                let code = repaired.status.code();
                assert!(matches!(code, Some(0 | 1)), "{}", String::from_utf8_lossy(&repaired.stdout));
                check(LoopMount::new(&image, "ro").unwrap().path(), &facts, "e2fsck");
            }
        }
        e2fsck_clean(&image);
    }
}
