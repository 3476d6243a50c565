//! Images and folders given to `blockyard lab run`: unusable ones, ones that the user may not read
//! or write, and ones whose names are not UTF-8. A refusal says what is wrong, and leaves the image
//! unchanged.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::Command;

use support::{blockyard, run_with, stderr, stdout, words};

/// An image that `blockyard mkfs` made.
fn image(folder: &Path, size: &str) -> String {
    let path = folder.join("image").to_str().unwrap().to_owned();
    let output = blockyard(&["mkfs", &path, size, "--seed", "1", "--time", "1700000000", "--quiet"]);
    assert!(output.status.success(), "{}", stderr(&output));
    path
}

#[test]
fn bad_images_are_one_line_and_stay_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(image(folder.path(), "16M")).unwrap();
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("empty", Vec::new(), ""),
        ("noise", vec![0x5A; 1 << 20], ""),
        ("cut", good[..good.len() / 2].to_vec(), "cut short"),
        ("small", good.clone(), "too small"),
        ("text", b"not an image\n".to_vec(), ""),
    ];
    for (name, bytes, part) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let path = path.to_str().unwrap();
        for in_place in [false, true] {
            let mut arguments = vec![
                "lab",
                "run",
                "append64",
                "--scale",
                "0.1",
                "--workers",
                "1",
                "--policy",
                "yard",
                "--image",
                path,
            ];
            arguments.extend(in_place.then_some("--in-place"));
            let output = blockyard(&arguments);
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(8), "{name}: {text}");
            assert!(text.contains(path) && text.contains(part), "{name}: {text}");
            assert_eq!(text.trim_end().lines().count(), 1, "{name}: {text}");
            assert_eq!(&std::fs::read(path).unwrap(), bytes, "{name} was changed");
        }
    }
    let missing = folder.path().join("missing");
    let output = blockyard(&run_image(missing.to_str().unwrap(), &[]));
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("missing") && !missing.exists(), "{}", stderr(&output));
    let folder_as_image = blockyard(&run_image(folder.path().to_str().unwrap(), &[]));
    assert_eq!(folder_as_image.status.code(), Some(8));
    assert!(stderr(&folder_as_image).contains("is a directory; an image"));
    let file_as_folder = blockyard(&run_with(&["--out", folder.path().join("noise").to_str().unwrap()]));
    assert_eq!(file_as_folder.status.code(), Some(8));
    assert!(stderr(&file_as_folder).contains("noise: not a folder"), "{}", stderr(&file_as_folder));
}

fn run_image<'a>(path: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = words("lab run fallocate2 --workers 1 --ops 20 --policy yard --image");
    [run.as_slice(), &[path], more].concat()
}

/// Runs as a user who at first may not read the image, and later may read but not write it. Needs
/// root, to become that user.
#[test]
fn without_permission_nothing_runs() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !blockyard_testkit::require(&["root"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(folder.path(), 0o755);
    let path = image(folder.path(), "16M");
    // The other user must be able to reach the program too.
    let program = folder.path().join("blockyard");
    // Another process makes the copy. If this process made it, a child that another test starts
    // could have the copy open for writing for a moment, and meanwhile the copy could not run.
    assert!(
        Command::new("cp").arg(env!("CARGO_BIN_EXE_blockyard")).arg(&program).status().unwrap().success()
    );
    mode(&program, 0o755);
    // The program also needs a folder for temporary files. The host's own may be closed to the
    // other user.
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    mode(&temporary, 0o1777);
    let as_nobody = |arguments: &[&str]| {
        Command::new(&program)
            .args(arguments)
            .env("TMPDIR", &temporary)
            .uid(65_534)
            .gid(65_534)
            .current_dir("/")
            .output()
            .unwrap()
    };
    mode(Path::new(&path), 0o600);
    let output = as_nobody(&run_image(&path, &[]));
    assert_eq!(output.status.code(), Some(8));
    assert!(
        stderr(&output).contains(&path) && stderr(&output).contains("ermission denied"),
        "{}",
        stderr(&output)
    );
    // Read permission is enough for an overlay, but not for --in-place.
    mode(Path::new(&path), 0o444);
    let before = std::fs::read(&path).unwrap();
    let output = as_nobody(&run_image(&path, &[]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(as_nobody(&run_image(&path, &["--in-place"])).status.code(), Some(8));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let output = as_nobody(&run_image(&path, &["--out", "/proc/nowhere"]));
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("--out /proc/nowhere: cannot be written"), "{}", stderr(&output));
    let keep = words("lab crash --workload names --states 1 --ours-only --keep /proc/nowhere");
    let output = as_nobody(&keep);
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("--keep /proc/nowhere: cannot be written"), "{}", stderr(&output));
    let output = as_nobody(&run_with(&["--beside", "kernel"]));
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("--beside kernel: needs root"), "{}", stderr(&output));
}

#[test]
fn an_image_is_read_only_unless_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "16M");
    let before = std::fs::read(&path).unwrap();
    let output = blockyard(&run_image(&path, &["--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let two_cells = blockyard(&run_image(&path, &["--in-place", "--repeat", "2"]));
    assert_eq!(two_cells.status.code(), Some(2));
    assert!(stderr(&two_cells).contains("one cell only"), "{}", stderr(&two_cells));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(blockyard(&run_image(&path, &["--in-place", "--quiet"])).status.code(), Some(0));
    let listing = stdout(&blockyard(&["ls", "-l", &path]));
    assert!(listing.contains("1048576") && listing.contains("fallocate2.0.0"), "{listing}");
    assert_eq!(blockyard(&["check", "-n", &path]).status.code(), Some(0));
    // Now the file exists, so a second run makes another file. In this way an image ages run by
    // run.
    assert_eq!(blockyard(&run_image(&path, &["--in-place", "--quiet"])).status.code(), Some(0));
    assert_eq!(stdout(&blockyard(&["ls", &path])), "fallocate2.0.0\nfallocate2.0.1\nlost+found\n");
    assert_eq!(blockyard(&["check", "-n", &path]).status.code(), Some(0));
}

/// An image that is marked as having errors is refused, and so is an image without a feature that
/// the workload needs. The message names the image.
#[test]
fn what_an_image_does_not_allow_is_said_of_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, options: &str| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let mkfs = [words("--quiet mkfs -b 4096"), words(options), vec![&path, "64M"]].concat();
        assert!(blockyard(&mkfs).status.success());
        path
    };
    let path = make("marked", "-O ^metadata_csum");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // s_state: not clean, with errors.
    std::os::unix::fs::FileExt::write_all_at(&file, &[2], 1024 + 0x3A).unwrap();
    let marked = blockyard(&run_image(&path, &[]));
    assert_eq!(marked.status.code(), Some(8));
    let text = stderr(&marked);
    assert!(
        text.starts_with(&format!("blockyard: {path}: the file system is marked as having errors")),
        "{text}"
    );
    let old = make("ext3", "-t ext3");
    let text = stderr(&blockyard(&run_image(&old, &[])));
    assert!(
        text.contains(&format!("{old}: fallocate2 allocates by fallocate, which needs the feature extent")),
        "{text}"
    );
    // Without the feature, seqwrite (like fio) goes on without preallocation.
    let run = words("lab run seqwrite --workers 1 --ops 20 --scale 0.001 --policy yard --json --image");
    let output = blockyard(&[run.as_slice(), &[&old]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Names that are not UTF-8 are accepted. The report quotes them, so that the command can be typed
/// again.
#[test]
fn folders_and_images_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let [source, out] =
        [&b"\xFF.img"[..], b"\xFE\n"].map(|name| folder.path().join(std::ffi::OsStr::from_bytes(name)));
    std::fs::rename(image(folder.path(), "16M"), &source).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(words("lab run fallocate2 --workers 1 --ops 20 --policy yard --image"))
        .args([source.as_os_str(), "--out".as_ref(), out.as_os_str()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains(r"\xff.img' --out $'") && report.contains(r"\xfe\n'"), "{report}");
}
