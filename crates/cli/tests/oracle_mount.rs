//! `blockyard mount` as a program: in the background, with options, ended by umount and by signals.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_testkit::{e2fsck_clean, mke2fs, require, run, wait_until};

const BLOCKYARD: &str = env!("CARGO_BIN_EXE_blockyard");

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        mke2fs(&folder.path().join("image"), &["-t", "ext4"], "64M");
        fs::create_dir(folder.path().join("mnt")).unwrap();
        Self { folder }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    fn mount(&self, options: &[&str]) -> Output {
        let mut command = Command::new(BLOCKYARD);
        command.arg("mount").arg(self.image()).arg(self.directory()).args(options);
        command.output().unwrap()
    }

    /// Creates a file in the image and destroys its extent header.
    fn damage_file(&self) {
        assert!(self.mount(&[]).status.success());
        fs::write(self.directory().join("file"), [1; 10_000]).unwrap();
        assert!(run("umount", &[self.directory().to_str().unwrap()]).status.success());
        self.wait_for_end();
        let image = self.image();
        let request = ["-w", "-R", "sif /file block[0] 0", image.to_str().unwrap()];
        assert!(run("debugfs", &request).status.success());
    }

    fn is_mounted(&self) -> bool {
        line_of(&self.directory()).is_some()
    }

    /// The id of the server, the process that has the image open.
    fn server(&self) -> u32 {
        let image = self.image();
        let mut processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            entry.unwrap().file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        });
        let has_open = |process: &u32| {
            let files = fs::read_dir(format!("/proc/{process}/fd"));
            files.is_ok_and(|mut files| {
                files
                    .any(|file| file.is_ok_and(|file| fs::read_link(file.path()).is_ok_and(|to| to == image)))
            })
        };
        processes.find(has_open).expect("somebody serves it")
    }

    fn wait_for_end(&self) {
        // If the image is a file, umount does not wait for the server.
        wait_until("the image is free", || {
            let output = Command::new(BLOCKYARD).arg("recover").arg(self.image()).output().unwrap();
            output.status.success()
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            run("umount", &["-l", self.directory().to_str().unwrap()]);
        }
    }
}

fn line_of(directory: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let place = format!(" {} ", directory.display());
    mounts.lines().find(|line| line.contains(&place)).map(str::to_owned)
}

fn can_mount() -> bool {
    require(&["root", "mke2fs", "e2fsck", "mount", "umount", "dumpe2fs"])
}

#[test]
fn it_goes_to_the_background_and_umount_ends_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let output = place.mount(&["-o", "noatime,allow_other"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let line = line_of(&place.directory()).unwrap();
    assert!(line.contains(" fuse.blockyard rw,noatime,") && line.contains("allow_other"), "{line}");
    fs::write(place.directory().join("file"), "content").unwrap();
    let again = place.mount(&[]);
    assert_eq!(again.status.code(), Some(8), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("image"), "{again:?}");
    assert!(run("umount", &[place.directory().to_str().unwrap()]).status.success());
    place.wait_for_end();
    e2fsck_clean(&place.image());
    let header = run("dumpe2fs", &["-h", place.image().to_str().unwrap()]);
    let header = String::from_utf8_lossy(&header.stdout).into_owned();
    let value = |name: &str| {
        let line = header.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].trim().to_owned()
    };
    assert_eq!(value("Last mounted on:"), place.directory().to_str().unwrap());
    assert_eq!((value("Mount count:"), value("Filesystem state:")), ("1".to_owned(), "clean".to_owned()));
}

#[test]
fn wrong_usage_is_told_before_anything_is_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for (options, code, told) in [
        ("ro,usrquota", 2, "option usrquota: quota is not supported"),
        ("shiny", 2, "unknown option shiny"),
        ("policy=none-such", 2, "policy"),
    ] {
        let output = place.mount(&["-o", options]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{options}: {text}");
        assert!(text.contains(told) && text.lines().count() == 1, "{options}: {text}");
        assert!(!place.is_mounted());
    }
    fs::write(place.image(), vec![0; 1 << 20]).unwrap();
    let output = place.mount(&[]);
    assert_eq!(output.status.code(), Some(8));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("holds no ext2, ext3 or ext4") && text.lines().count() == 1, "{text}");
    let nowhere = Command::new(BLOCKYARD).args(["mount", "none", "nowhere"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(8));
}

/// On SIGTERM, the server unmounts and ends. While a file is open, the kernel refuses to unmount,
/// and the server detaches the mount instead. The data written so far is kept.
#[test]
fn a_signal_ends_it_in_order_also_while_it_is_used() {
    if !can_mount() {
        return;
    }
    for is_used in [false, true] {
        let place = Place::new();
        assert!(place.mount(&[]).status.success());
        let path = place.directory().join("file");
        fs::write(&path, vec![7; 1_000_000]).unwrap();
        let used = is_used.then(|| fs::File::open(&path).unwrap());
        let server = place.server();
        assert!(run("kill", &["-TERM", &server.to_string()]).status.success());
        wait_until("the server ends", || !Path::new(&format!("/proc/{server}/fd")).exists());
        assert!(!place.is_mounted());
        drop(used);
        e2fsck_clean(&place.image());
        let output = Command::new(BLOCKYARD).arg("cat").arg(place.image()).arg("/file").output().unwrap();
        assert!(output.stdout == vec![7; 1_000_000], "is used: {is_used}");
    }
}

/// After a lazy unmount, another file system may be mounted on the same directory. SIGTERM then
/// ends the server, keeps the written data and leaves the other mount alone.
#[test]
fn a_signal_ends_what_is_no_longer_in_its_place() {
    if !can_mount() {
        return;
    }
    for is_replaced in [false, true] {
        let place = Place::new();
        assert!(place.mount(&[]).status.success());
        let directory = place.directory();
        let used = fs::File::create(directory.join("file")).unwrap();
        let server = place.server();
        let path = directory.to_str().unwrap();
        assert!(run("umount", &["-l", path]).status.success());
        if is_replaced {
            assert!(run("mount", &["-t", "tmpfs", "tmpfs", path]).status.success());
        }
        // While the file is open, start no other program: when a child closes its copy of our open
        // file, the kernel writes the file back.
        std::os::unix::fs::FileExt::write_all_at(&used, &[7; 10_000], 0).unwrap();
        let process = rustix::process::Pid::from_raw(server.cast_signed()).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        wait_until("the server ends", || !Path::new(&format!("/proc/{server}/fd")).exists());
        assert_eq!(place.is_mounted(), is_replaced);
        drop(used);
        e2fsck_clean(&place.image());
        let output = Command::new(BLOCKYARD).arg("cat").arg(place.image()).arg("/file").output().unwrap();
        assert!(output.stdout == vec![7; 10_000], "is replaced: {is_replaced}");
    }
}

/// A mount whose log or trace would be written to the image file is refused.
#[test]
fn neither_log_nor_trace_overwrites_the_image() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let before = fs::read(place.image()).unwrap();
    let link = place.folder.path().join("link");
    std::os::unix::fs::symlink(place.image(), &link).unwrap();
    for option in ["--record", "--log"] {
        for path in [&place.image(), &link] {
            for more in [&[][..], &["--foreground"]] {
                let output = place.mount(&[&[option, path.to_str().unwrap()], more].concat());
                assert_eq!(output.status.code(), Some(8), "{output:?}");
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(text.contains("is the image itself") && text.lines().count() == 1, "{text}");
            }
        }
    }
    assert!(!place.is_mounted() && fs::read(place.image()).unwrap() == before);
}

/// A remount changes the options it names and keeps the others. It refuses options of the server,
/// such as `commit`.
#[test]
fn a_remount_changes_what_the_kernel_can() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    assert_eq!(place.mount(&["-o", "remount,ro"]).status.code(), Some(8), "nothing is mounted");
    assert!(place.mount(&["-o", "nosuid"]).status.success());
    let noted = run(BLOCKYARD, &["check", "-n", place.image().to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&noted.stderr).contains("is writing to it"), "{noted:?}");
    assert!(place.mount(&["-o", "remount,ro"]).status.success());
    let line = line_of(&place.directory()).unwrap();
    assert!(line.contains(" ro,nosuid,"), "{line}");
    assert_eq!(fs::write(place.directory().join("x"), "x").unwrap_err().raw_os_error(), Some(30));
    for word in ["commit=30", "noatime", "strictatime"] {
        let refused = place.mount(&["-o", &format!("remount,{word}")]);
        assert_eq!(refused.status.code(), Some(8), "{refused:?}");
    }
    assert!(place.mount(&["-o", "remount,rw"]).status.success());
    fs::write(place.directory().join("x"), "x").unwrap();
    assert!(run("umount", &[place.directory().to_str().unwrap()]).status.success());
    place.wait_for_end();
    e2fsck_clean(&place.image());
}

/// The server applies the access-time option, so a remount cannot change it. A remount may repeat
/// the option that is in force.
#[test]
fn a_remount_keeps_how_access_times_change() {
    if !can_mount() {
        return;
    }
    for word in ["noatime", "relatime", "strictatime"] {
        let place = Place::new();
        assert!(place.mount(&["-o", word]).status.success());
        let shown = line_of(&place.directory()).unwrap();
        let named = ["noatime", "relatime"].into_iter().find(|kind| shown.contains(kind));
        assert_eq!(named, (word != "strictatime").then_some(word), "{shown}");
        assert!(place.mount(&["-o", "remount,ro"]).status.success());
        assert!(place.mount(&["-o", &format!("remount,rw,{word}")]).status.success());
        assert_eq!(line_of(&place.directory()).unwrap(), shown);
        assert!(run("umount", &[place.directory().to_str().unwrap()]).status.success());
        place.wait_for_end();
    }
}

/// `/proc/self/mounts` shows blanks and backslashes of a mount point as octal escapes, but `#` as
/// it is.
#[test]
fn a_remount_finds_a_path_with_blanks() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let directory = place.folder.path().join("a b\\c#d");
    fs::create_dir(&directory).unwrap();
    let mount = |options| {
        let mut command = Command::new(BLOCKYARD);
        command.arg("mount").arg(place.image()).arg(&directory).args(["-o", options]).status().unwrap()
    };
    assert!(mount("rw").success());
    assert!(mount("remount,ro").success());
    assert_eq!(fs::write(directory.join("x"), "x").unwrap_err().raw_os_error(), Some(30));
    assert!(run("umount", &[directory.to_str().unwrap()]).status.success());
    place.wait_for_end();
}

/// After damage had made the file system read-only, the log used to repeat every second that work
/// in the background failed. Now each of the two background threads logs its failure at most once.
#[test]
fn what_stays_wrong_is_logged_once() {
    if !can_mount() || !require(&["debugfs"]) {
        return;
    }
    let place = Place::new();
    place.damage_file();
    let log = place.folder.path().join("log");
    let options = ["-o", "errors=remount-ro,commit=1", "--log", log.to_str().unwrap()];
    assert!(place.mount(&options).status.success());
    let written = fs::File::create(place.directory().join("other")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&written, &[2; 10_000], 0).unwrap();
    assert_eq!(fs::read(place.directory().join("file")).unwrap_err().raw_os_error(), Some(117));
    std::thread::sleep(std::time::Duration::from_secs(5));
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("the file system is damaged: inode "), "{text}");
    assert!(text.contains("turned the file system read-only"), "{text}");
    let count = text.lines().filter(|line| line.contains("work in the background failed")).count();
    assert!(count <= 2, "{text}");
}

/// A mount with `errors=continue` used not to log damage at all.
#[test]
fn damage_is_logged_once() {
    if !can_mount() || !require(&["debugfs"]) {
        return;
    }
    let place = Place::new();
    place.damage_file();
    let log = place.folder.path().join("log");
    assert!(place.mount(&["-o", "errors=continue", "--log", log.to_str().unwrap()]).status.success());
    for _ in 0..3 {
        assert_eq!(fs::read(place.directory().join("file")).unwrap_err().raw_os_error(), Some(117));
    }
    fs::write(place.directory().join("other"), "text").unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let count = text.lines().filter(|line| line.contains("the file system is damaged: inode ")).count();
    assert_eq!(count, 1, "{text}");
}

/// On SIGUSR1 the server logs the requests, their latencies, and the allocator's counters.
#[test]
fn a_signal_logs_the_rates() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let log = place.folder.path().join("log");
    assert!(place.mount(&["--log", log.to_str().unwrap()]).status.success());
    fs::write(place.directory().join("file"), "content").unwrap();
    assert!(fs::metadata(place.directory().join("none")).is_err());
    assert!(run("kill", &["-USR1", &place.server().to_string()]).status.success());
    let told = || fs::read_to_string(&log).unwrap_or_default();
    // The table of requests comes last.
    wait_until("the figures are logged", || told().contains("99 % us") && told().ends_with("\n\n"));
    let told = told();
    for part in [" inodes remembered, ", " files open, ", " commits\n", "mballoc:\n", "per s"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let count = |request: &str| {
        let line = told.lines().find(|line| line.starts_with(request)).unwrap_or_else(|| panic!("{told}"));
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!((count("create"), count("write"), count("lookup")), (1, 1, 2), "{told}");
    assert!(run("umount", &[place.directory().to_str().unwrap()]).status.success());
    place.wait_for_end();
}

/// A line in fstab and a link to the program are enough for mount(8). For this test alone, an
/// overlayfs mount in a namespace of its own adds the link to /usr/sbin.
#[test]
fn a_line_of_fstab_mounts_it() {
    if !can_mount() || !require(&["unshare"]) {
        return;
    }
    let place = Place::new();
    let (image, directory) = (place.image(), place.directory());
    let helpers = place.folder.path().join("sbin");
    fs::create_dir(&helpers).unwrap();
    std::os::unix::fs::symlink(BLOCKYARD, helpers.join("mount.fuse.blockyard")).unwrap();
    let fstab = place.folder.path().join("fstab");
    let line = |image: &Path, options| {
        format!("{} {} fuse.blockyard {options} 0 0\n", image.display(), directory.display())
    };
    let script = "
        mount -t overlay overlay -o lowerdir=$1:/usr/sbin /usr/sbin || exit 100
        mount --fstab $2 $3 || exit $?
        grep \" $3 fuse.blockyard \" /proc/self/mounts || exit 101
        echo content >$3/$4
        mount --fstab $2 -o remount,ro $3 || exit 102
        (: >$3/other) && exit 103
        : >$2.empty; mount --fstab $2.empty -o remount,rw $3 || exit 104
        : >$3/another || exit 105
        umount $3";
    let mount = |name: &str| {
        let mut arguments = vec!["-m", "sh", "-c", script, "sh"];
        let paths = [&helpers, &fstab, &directory].map(|path| path.to_str().unwrap());
        arguments.extend(paths);
        arguments.push(name);
        run("unshare", &arguments)
    };
    fs::write(&fstab, line(&image, "noatime,allow_other,nofail,x-systemd.automount")).unwrap();
    let output = mount("file");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("noatime"), "{output:?}");
    place.wait_for_end();
    e2fsck_clean(&image);
    let output = Command::new(BLOCKYARD).arg("cat").arg(&image).arg("/file").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "content\n");
    // Exit codes are those of mount(8).
    fs::write(&fstab, line(&image, "shiny")).unwrap();
    assert_eq!(mount("file").status.code(), Some(1));
    fs::write(&fstab, line(Path::new("/none-such"), "defaults")).unwrap();
    assert_eq!(mount("file").status.code(), Some(32));
}

/// Writes files until one is refused. Returns the errno.
fn fill(directory: &Path) -> i32 {
    use std::io::Write;
    for number in 0..1_000 {
        let written = fs::File::create(directory.join(format!("file{number}")))
            .and_then(|mut file| file.write_all(&[7; 1 << 20]).and_then(|()| file.sync_all()));
        if let Err(error) = written {
            return error.raw_os_error().unwrap();
        }
    }
    panic!("a thousand files fit");
}

/// The image is sparse, and the file system that stores it becomes full. A writer gets an error,
/// the mount can be unmounted, and what was synced before is still there.
#[test]
fn a_full_host_is_an_error_and_no_hang() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let host = place.folder.path().join("host");
    fs::create_dir(&host).unwrap();
    let of_host = host.to_str().unwrap();
    assert!(run("mount", &["-t", "tmpfs", "-o", "size=24M", "tmpfs", of_host]).status.success());
    let end = Unmounted(host.clone());
    let image = host.join("image");
    mke2fs(&image, &["-t", "ext4"], "256M");
    let output = Command::new(BLOCKYARD).arg("mount").arg(&image).arg(place.directory()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::write(place.directory().join("kept"), "content").unwrap();
    fs::File::open(place.directory().join("kept")).unwrap().sync_all().unwrap();
    let error = fill(&place.directory());
    assert!([5, 28, 30].contains(&error), "{error}");
    assert_eq!(fs::read_to_string(place.directory().join("kept")).unwrap(), "content");
    assert!(run("umount", &[place.directory().to_str().unwrap()]).status.success());
    assert!(run("mount", &["-o", "remount,size=300M", of_host]).status.success());
    wait_until("the image is free", || {
        run("flock", &["-n", image.to_str().unwrap(), "true"]).status.success()
    });
    let repaired = run("e2fsck", &["-fy", image.to_str().unwrap()]);
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{repaired:?}");
    let output = Command::new(BLOCKYARD).arg("cat").arg(&image).arg("/kept").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "content");
    drop(end);
}

/// Unmounts at the end of a test.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

/// If the image file is unlinked, the mount keeps working. If it is truncated to nothing,
/// operations may fail, but content that is in memory can still be read. In neither case does an
/// operation hang.
#[test]
fn an_image_that_goes_away_hangs_nobody() {
    if !can_mount() {
        return;
    }
    for is_cut in [false, true] {
        let place = Place::new();
        assert!(place.mount(&[]).status.success());
        fs::write(place.directory().join("before"), "content").unwrap();
        let server = place.server();
        if is_cut {
            fs::OpenOptions::new().write(true).open(place.image()).unwrap().set_len(0).unwrap();
        } else {
            fs::remove_file(place.image()).unwrap();
        }
        let made = fs::create_dir(place.directory().join("later"));
        let written = fs::write(place.directory().join("after"), "content");
        let synced = fs::File::open(place.directory().join("before")).and_then(|file| file.sync_all());
        assert_eq!(fs::read_to_string(place.directory().join("before")).unwrap(), "content");
        if !is_cut {
            made.unwrap();
            written.unwrap();
            synced.unwrap();
        }
        // A program that lists mounts may keep the mount busy for a moment.
        let unmount = || run("umount", &[place.directory().to_str().unwrap()]).status.success();
        wait_until("the mount is free", unmount);
        wait_until("the server ends", || !Path::new(&format!("/proc/{server}/fd")).exists());
    }
}
