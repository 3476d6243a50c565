//! Images exported as archives and container images, and back. GNU tar extracts what the image
//! holds, and an image built from an export equals an image built from the original. Names that no
//! file can have are refused.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use blockyard_build::{Builder, Choice, Compression, ContainerOptions, Difference, Error, Tree, What};
use blockyard_device::{BlockDevice, FileDevice, MemoryDevice};
use blockyard_testkit::{LoopMount, e2fsck_clean, images, require};

fn image(tree: Tree) -> Vec<u8> {
    let plan = Builder::default().plan(tree).unwrap();
    let device = MemoryDevice::new(plan.bytes());
    plan.write(&device).unwrap();
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn of_image(path: &Path, below: &[u8]) -> Result<Tree, Error> {
    Tree::read_image(Arc::new(FileDevice::open_read_only(path).unwrap()), path, below)
}

fn archive(tree: &Tree) -> Vec<u8> {
    let mut bytes = Vec::new();
    tree.write_archive(&mut bytes, Path::new("archive")).unwrap();
    bytes
}

fn of_archive(bytes: &[u8]) -> Tree {
    Tree::read_archive(std::io::Cursor::new(bytes.to_vec()), Path::new("archive"), &std::env::temp_dir())
        .unwrap()
}

fn differences(one: &Tree, other: &Tree) -> Vec<Difference> {
    let mut found = Vec::new();
    Tree::compare(one, other, &mut |difference| {
        found.push(difference);
        Ok(())
    })
    .unwrap();
    found
}

fn sh(at: &Path, script: &str) {
    let status = Command::new("sh").args(["-ec", script]).current_dir(at).status().unwrap();
    assert!(status.success(), "{script}");
}

/// An image that Linux filled with all kinds of files.
fn filled(folder: &Path, profile: &str) -> PathBuf {
    let path = images::make(images::profile_named(profile), folder);
    let mount = LoopMount::new(&path, "").unwrap();
    images::fill(mount.path(), false);
    sh(
        mount.path(),
        "touch 'line
end' old; touch -d '1969-12-31 23:59:59.25 UTC' old; setfattr -n 'user.a=b%c' -v 'x=y' old
         mkdir -p flags; touch flags/append flags/fixed flags/plain; chattr +ad flags/append; chattr +iA flags/fixed
         chattr +t flags/plain; truncate -s 1M all-hole; chown 3000000:4000000000 all-hole; ln -s \"$(printf %0150d 7)\" long-link
         setcap cap_net_raw+ep four-bytes 2>/dev/null || setfattr -n security.note -v x four-bytes
         mkdir -p deep/er; touch \"deep/er/$(printf %0200d 1)\"; ln \"deep/er/$(printf %0200d 1)\" deep/er/alias",
    );
    drop(mount);
    if profile == "ext4" {
        // Flags for journaled data, no tail, and extents. chattr cannot always set the first one:
        // that needs a capability which root may lack.
        let request = ["-w", "-R", "sif flags/plain flags 0x8C000", path.to_str().unwrap()];
        assert!(blockyard_testkit::run("debugfs", &request).status.success());
    }
    path
}

/// Clears the append-only and immutable flags.
fn without_flags(path: &Path) {
    let mount = LoopMount::new(path, "").unwrap();
    sh(mount.path(), "chattr -ai flags/append flags/fixed");
}

#[test]
fn what_is_built_of_an_export_is_the_image() {
    if !require(&["root", "mount", "e2fsck", "setfattr", "chattr"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for profile in ["ext4", "ext2"] {
        let path = filled(folder.path(), profile);
        let original = of_image(&path, b"/").unwrap();
        let mounted = {
            let mount = LoopMount::new(&path, "ro").unwrap();
            let tree = Tree::read(mount.path(), 2).unwrap();
            let found = differences(&tree, &original);
            // The tree of the mount has only the flags that `statx` reports.
            let is_other = |found: &&Difference| !matches!(found.what, What::Flags(..));
            assert!(found.iter().find(is_other).is_none(), "{profile}: {:?}", found.iter().find(is_other));
            tree.names()
        };
        assert_eq!(mounted, original.names());
        let bytes = archive(&original);
        assert_eq!(differences(&original, &of_archive(&bytes)), [], "{profile}");
        // An earlier version left out the flag for journaled data. Only the ext4 image has it.
        let flags: &[u8] = if profile == "ext4" { b"=journal-data,notail\n" } else { b"notail\n" };
        assert!(bytes.windows(flags.len()).any(|part| part == flags), "{profile}");
        let expected = image(original);
        assert!(image(of_archive(&bytes)) == expected, "{profile}: another image of the archive");
        let built = folder.path().join("built");
        fs::write(&built, &expected).unwrap();
        e2fsck_clean(&built);
        // The export of the built image equals that of the original, except for access times, which
        // built images do not keep.
        let again = archive(&of_image(&built, b"/").unwrap());
        assert_eq!(differences(&of_archive(&again), &of_archive(&bytes)), [], "{profile}");
        assert!(archive(&of_archive(&again)) == again, "{profile}: another archive of an archive");
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let layout = folder.path().join("layout");
            fs::create_dir(&layout).unwrap();
            let options = ContainerOptions { compression, ..ContainerOptions::default() };
            of_image(&path, b"/").unwrap().write_container(&layout, &options).unwrap();
            let stored = Tree::read(&layout, 1).unwrap();
            assert!(stored.is_container_image());
            let unpacked = stored.unpack_container(&Choice::default(), &std::env::temp_dir()).unwrap();
            assert!(image(unpacked) == expected, "{profile}: another image of the container");
            fs::remove_dir_all(&layout).unwrap();
        }
        without_flags(&path);
    }
}

#[test]
fn gnu_tar_extracts_what_the_image_holds() {
    if !require(&["root", "mount", "tar", "setfattr", "chattr"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = filled(folder.path(), "ext4");
    without_flags(&path);
    let original = of_image(&path, b"/").unwrap();
    let file = folder.path().join("archive.tar");
    fs::write(&file, archive(&original)).unwrap();
    let second = folder.path().join("second");
    fs::create_dir(&second).unwrap();
    let fresh = images::make(images::profile_named("ext4"), &second);
    let mount = LoopMount::new(&fresh, "").unwrap();
    sh(
        mount.path(),
        &format!("tar --xattrs --xattrs-include='*' --acls --numeric-owner -xpf '{}'", file.display()),
    );
    let found = differences(&original, &Tree::read(mount.path(), 2).unwrap());
    let other: Vec<&Difference> = found
        .iter()
        // tar extracts neither sockets nor flags.
        .filter(|found| !matches!(found.what, What::Flags(..)) && found.path != b"socket")
        .collect();
    assert!(other.is_empty(), "{other:?}");
    // Exports of a directory and of a single file.
    for (below, names) in [(&b"/tiny"[..], 6), (b"four-bytes", 1)] {
        assert_eq!(of_archive(&archive(&of_image(&path, below).unwrap())).names(), names);
    }
}

/// Reading a damaged image refuses names that no file can have, and a name that occurs twice. The
/// image has no checksums that would show the damage. Writing a layer refuses a name that would
/// remove another one.
#[test]
fn names_that_no_file_has_are_refused() {
    if !require(&["root", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("tree");
    fs::create_dir_all(top.join("inner")).unwrap();
    for name in ["inner/qqqqqqqq", "inner/ww", "inner/z"] {
        fs::write(top.join(name), "content").unwrap();
    }
    let plain = Builder::default();
    let options = plain.options.clone().features("^metadata_csum,^has_journal");
    let plan = Builder { options, ..plain }.plan(Tree::read(&top, 1).unwrap()).unwrap();
    let device = MemoryDevice::new(plan.bytes());
    plan.write(&device).unwrap();
    let path = folder.path().join("image");
    device.save(&path).unwrap();
    let sound = fs::read(&path).unwrap();
    assert_eq!(of_image(&path, b"/").unwrap().names(), 4);
    let place = |name: &[u8]| sound.windows(name.len()).position(|part| part == name).unwrap();
    let cases: [(&[u8], &[u8], &str); 6] = [
        (b"qqqqqqqq", b"../../qq", "inner"),
        (b"qqqqqqqq", b"/etc/xyz", "inner"),
        (b"qqqqqqqq", b"qqq\0qqqq", "inner"),
        (b"\x02\x01ww", b"\x02\x01..", "inner/.."),
        (b"\x01\x01z", b"\x01\x01.", "inner/."),
        (b"\x02\x01ww", b"\x01\x01zw", "inner/z"),
    ];
    for (name, hostile, told) in cases {
        let mut bytes = sound.clone();
        let at = place(name);
        bytes[at..at + hostile.len()].copy_from_slice(hostile);
        fs::write(&path, bytes).unwrap();
        let error = of_image(&path, b"/").map(|tree| tree.names()).unwrap_err().to_string();
        assert!(error.contains(told), "{}: {error}", hostile.escape_ascii());
    }
    // In a layer, this name would remove another one.
    fs::write(top.join("inner/.wh.z"), "").unwrap();
    let layout = folder.path().join("layout");
    fs::create_dir(&layout).unwrap();
    let refused = Tree::read(&top, 1).unwrap().write_container(&layout, &ContainerOptions::default());
    assert!(refused.unwrap_err().to_string().contains("inner/.wh.z"));
    assert_eq!(fs::read_dir(&layout).unwrap().count(), 0);
}

#[test]
fn what_differs_is_told() {
    if !require(&["root", "mount", "setfattr"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    fs::create_dir(&one).unwrap();
    sh(
        &one,
        "mkdir a b only; touch only/x a/same; echo text >a/text; ln -s x a/link; mknod a/null c 1 3; mkfifo a/kind; echo 1 >a/one; ln a/one b/one
         truncate -s 3M a/sparse; printf x | dd of=a/sparse bs=1 seek=2000000 conv=notrunc status=none; setfattr -n user.n -v 1 a/text
         setfattr -n user.gone -v 1 a/text",
    );
    sh(folder.path(), "cp -a one other");
    let tree = |path: &Path| Tree::read(path, 1).unwrap();
    assert_eq!(differences(&tree(&one), &tree(&other)), []);
    sh(
        &other,
        "touch -r a x; rm -r only; mkdir z; touch z/y; echo toxt >a/t; touch -r a/text a/t; cat a/t >a/text; rm a/t; setfattr -n user.n -v 2 a/text; setfattr -x user.gone a/text
         chmod 600 a/text; chown 7:8 a/text; touch -d @99.5 a/text; ln -snf y a/link; rm a/null a/kind; mknod a/null c 1 5; touch a/kind; rm b/one; cp -p a/one b/one
         printf yy | dd of=a/sparse bs=1 seek=1000000 conv=notrunc status=none; truncate -s 4M a/sparse; mv x x2; rm x2
         for name in a b a/sparse a/null a/link .; do touch -h -r ../one/$name $name; done",
    );
    let found = differences(&tree(&one), &tree(&other));
    let told: Vec<String> = found
        .iter()
        .map(|found| format!("{}: {:?}", found.path.escape_ascii(), found.what).replace("blockyard", ""))
        .collect();
    let expected = [
        "only: OnlyInFirst(Directory)",
        "z: OnlyInSecond(Directory)",
        "a/kind: Type(Fifo, Regular)",
        "a/link: Target([120], [121])",
        "a/null: Device((1, 3), (1, 5))",
        "a/sparse: Size(3145728, 4194304)",
        "a/sparse: Bytes(Differences { ranges: [1000000..1000002], count: 1, bytes: 2, end: 1000002 })",
    ];
    let plain: Vec<&String> =
        told.iter().filter(|line| !line.contains("text") && !line.starts_with("b/one")).collect();
    let linked = told.iter().filter(|line| line.starts_with("b/one")).collect::<Vec<_>>();
    let without_order = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(
        without_order(plain.into_iter().cloned().collect()),
        without_order(expected.map(str::to_owned).to_vec())
    );
    assert_eq!(linked, ["b/one: LinkedTo(Some([97, 47, 111, 110, 101]), None)"]);
    let of_text: Vec<&String> = told.iter().filter(|line| line.starts_with("a/text")).collect();
    assert_eq!(of_text.len(), 7, "{of_text:#?}");
}

#[test]
fn what_watches_a_container_being_written_can_stop_it() {
    let folder = tempfile::tempdir().unwrap();
    let (top, layout) = (folder.path().join("top"), folder.path().join("layout"));
    fs::create_dir(&top).unwrap();
    fs::write(top.join("file"), vec![1; 3 << 20]).unwrap();
    let write = |most: usize| {
        let _ = fs::remove_dir_all(&layout);
        fs::create_dir(&layout).unwrap();
        let mut seen = 0;
        let done = Tree::read(&top, 1).unwrap().write_container_watched(
            &layout,
            &ContainerOptions::default(),
            &mut |bytes| {
                seen += bytes;
                if seen <= most { Ok(()) } else { Err(std::io::Error::other("stopped")) }
            },
        );
        (seen, done)
    };
    let (all, done) = write(usize::MAX);
    assert!(all > 3 << 20 && done.is_ok(), "{all} bytes, {done:?}");
    let (some, stopped) = write(1 << 20);
    assert!(some < all && stopped.unwrap_err().to_string().contains("stopped"));
    assert!(!layout.join("index.json").exists());
}

#[test]
fn times_of_access_go_into_archives() {
    if !require(&["root", "mount", "tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = images::make(images::profile_named("ext4"), folder.path());
    let mount = LoopMount::new(&path, "").unwrap();
    sh(
        mount.path(),
        "echo x >read; touch -m -d @1000000 read; touch -a -d '1970-01-24 01:23:20.5 UTC' read; echo y >same; touch -d @7 same",
    );
    drop(mount);
    let tree = of_image(&path, b"/").unwrap();
    let bytes = archive(&tree);
    let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    assert!(has(b" atime=1992200.500000000\n"), "the access time of the file that was read");
    assert!(!has(b" atime=7"), "an access time equal to the modification time is left out");
    // The access time survives another export, and makes no difference to an image.
    let again = of_archive(&bytes);
    assert!(archive(&again) == bytes);
    assert!(image(again) == image(tree));
}
