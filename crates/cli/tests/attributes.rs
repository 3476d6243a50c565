//! chmod, chown and touch inside an image. Owner names are looked up in the image.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Stdio};

use blockyard_testkit::{LoopMount, e2fsck_clean, require, run};

/// Runs a command and returns its exit code, standard output and standard error.
fn blockyard(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(arguments)
        .env_remove("SOURCE_DATE_EPOCH")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn done(arguments: &[&str]) -> String {
    let (code, said, errors) = blockyard(arguments);
    assert!(code == Some(0) && errors.is_empty(), "{arguments:?}: {errors}");
    said
}

fn fails(arguments: &[&str], code: i32) -> String {
    let (ended, _, errors) = blockyard(arguments);
    assert_eq!((ended, errors.lines().count()), (Some(code), 1), "{arguments:?}: {errors}");
    errors
}

/// Makes an image with a small tree. Returns its path.
fn image(folder: &Path) -> String {
    let path = folder.join("image").to_str().unwrap().to_owned();
    done(&["mkfs", "-q", "-b", "1024", &path, "16M"]);
    done(&["mkdir", "-p", &path, "/d/below"]);
    for file in ["/d/one", "/d/below/two"] {
        done(&["touch", &path, file]);
    }
    done(&["ln", "-s", &path, "one", "/d/link"]);
    path
}

/// Mode, owner and group of a name.
fn seen(image: &str, path: &str) -> (u64, u64, u64) {
    let stat: serde_json::Value = serde_json::from_str(&done(&["stat", "--json", image, path])).unwrap();
    let number = |key: &str| stat[key].as_u64().unwrap();
    (number("mode") & 0o7777, number("uid"), number("gid"))
}

/// `blockyard chmod` changes permissions as chmod does on a mounted image. Once, a mount was the
/// only way to change them.
#[test]
fn permissions_are_changed_as_chmod_does() {
    if !require(&["root", "mount", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (image(folder.path()), folder.path().join("theirs"));
    std::fs::copy(&ours, &theirs).unwrap();
    let mounted = LoopMount::new(&theirs, "").unwrap();
    for (more, mode, path) in [
        (None, "u+s,g+w", "/d/one"),
        (Some("-R"), "a+rX,o-w", "/d"),
        (None, "2750", "/d/below"),
        (None, "755", "/d/below"),
        (None, "o=g-w,+t", "/d"),
        (None, "-w", "/d/below/two"),
        (None, "600", "/d/link"),
    ] {
        let options: Vec<&str> = more.into_iter().collect();
        done(&[&["chmod"], options.as_slice(), &[&ours, mode, path]].concat());
        let target = format!("{}{path}", mounted.path().display());
        // The umask is 0, because `blockyard chmod` applies none.
        let line = format!("umask 0; chmod {} -- '{mode}' '{target}'", options.concat());
        assert!(run("sh", &["-c", &line]).status.success(), "{line}");
    }
    drop(mounted);
    for path in ["/d", "/d/one", "/d/below", "/d/below/two", "/d/link"] {
        assert_eq!(seen(&ours, path), seen(theirs.to_str().unwrap(), path), "{path}");
    }
    assert!(fails(&["chmod", &ours, "u+q", "/d"], 2).contains("'u+q' is neither"));
    assert!(fails(&["chmod", &ours, "600", "/none"], 1).contains("/none: no such file"));
    e2fsck_clean(Path::new(&ours));
}

/// Names of users and groups are looked up in `/etc/passwd` and `/etc/group` of the image, not of
/// the host. Numbers are accepted, too.
#[test]
fn owners_are_names_of_the_image() {
    if !require(&["e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    assert!(fails(&["chown", &image, "www", "/d/one"], 8).contains("/etc/passwd"));
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    done(&["mkdir", &image, "/etc"]);
    done(&["put", &image, &file("passwd", "root:x:0:0::/:\nwww:x:4711:4712:Web:/srv:/bin/false\n"), "/etc/"]);
    done(&["put", &image, &file("group", "root:x:0:\nstaff:x:50:www\n"), "/etc/"]);
    done(&["chmod", &image, "6755", "/d/one"]);
    done(&["chown", &image, "www:staff", "/d/one"]);
    // A new owner clears the set-id bits, as on Linux.
    assert_eq!(seen(&image, "/d/one"), (0o755, 4711, 50));
    done(&["chown", &image, "www:", "/d/below/two"]);
    assert_eq!(seen(&image, "/d/below/two").1, 4711);
    assert_eq!(seen(&image, "/d/below/two").2, 4712);
    done(&["chown", "-R", &image, ":77", "/d"]);
    assert_eq!((seen(&image, "/d").2, seen(&image, "/d/link").2, seen(&image, "/d/one").1), (77, 77, 4711));
    done(&["chown", &image, "1:1", "/d/link"]);
    assert_eq!((seen(&image, "/d/one").1, seen(&image, "/d/link").1), (1, 0));
    done(&["chown", "-P", &image, "2:2", "/d/link"]);
    assert_eq!((seen(&image, "/d/one").1, seen(&image, "/d/link").1), (1, 2));
    assert!(fails(&["chown", &image, "nobody-here", "/d"], 8).contains("does not know 'nobody-here'"));
    assert!(fails(&["chown", &image, "a:b:c", "/d"], 2).contains("is not USER"));
    done(&["put", "--owner", "www:staff", &image, &file("page", "x"), "/page"]);
    assert_eq!((seen(&image, "/page").1, seen(&image, "/page").2), (4711, 50));
    done(&["put", "--owner", "123456:654321", &image, &file("page", "x"), "/page"]);
    assert_eq!((seen(&image, "/page").1, seen(&image, "/page").2), (123_456, 654_321));
    done(&["mkdir", "--owner", "www:", &image, "/home"]);
    assert_eq!((seen(&image, "/home").1, seen(&image, "/home").2), (4711, 4712));
    e2fsck_clean(Path::new(&image));
}

/// `touch` sets times as requested. It makes missing files, except with `-c`.
#[test]
fn touch_sets_times_and_makes_files() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let times = |path: &str| -> (i64, i64) {
        let stat: serde_json::Value = serde_json::from_str(&done(&["stat", "--json", &image, path])).unwrap();
        (stat["accessed"][0].as_i64().unwrap(), stat["modified"][0].as_i64().unwrap())
    };
    done(&["touch", "--time", "1000", &image, "/new", "/d/one"]);
    assert_eq!((times("/new"), times("/d/one")), ((1000, 1000), (1000, 1000)));
    done(&["touch", "-a", "--time", "2000", &image, "/d/link"]);
    done(&["touch", "-m", "--time=-5", &image, "/d/one"]);
    assert_eq!(times("/d/one"), (2000, -5));
    done(&["touch", "-c", &image, "/none"]);
    assert!(fails(&["cat", &image, "/none"], 1).contains("/none"));
    assert!(fails(&["touch", &image, "/none/x"], 1).contains("no such file"));
    done(&["check", "-n", &image]);
}
