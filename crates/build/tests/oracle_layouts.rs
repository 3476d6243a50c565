//! Five container images, two of them modelled on real ones. Each unpacks to the same tree as a
//! plain extraction, layer by layer, with GNU tar.

#![allow(clippy::unwrap_used)]

#[path = "support/layout.rs"]
mod layout;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blockyard_build::{Choice, Difference, Tree, What};
use blockyard_testkit::{e2fsck_clean, require};
use layout::{Layout, image, sh};

/// Removes what the whiteouts of a layer name, then extracts the layer without the whiteouts.
const EXTRACT: &str = r#"
tar -tf "$LAYER" | sed 's,^\./,,' | while IFS= read -r entry; do
    case "$entry" in */*) folder=${entry%/*} ;; *) folder=. ;; esac
    case "${entry##*/}" in
        .wh..wh..opq) [ ! -d "$folder" ] || find "$folder" -mindepth 1 -delete ;;
        .wh.*) name=${entry##*/}; rm -rf "$folder/${name#.wh.}" ;;
    esac
done
tar -xpf "$LAYER" --xattrs --xattrs-include='*' --acls --numeric-owner --same-owner --exclude='.wh.*'
"#;

/// A musl system: one program under many names and little else, in one layer.
const ALPINE: &[&str] = &["
mkdir -p bin sbin usr/bin usr/sbin etc/apk lib var/cache/apk proc sys dev root tmp home run
chmod 1777 tmp; chmod 700 root; head -c 800000 /dev/urandom >bin/busybox; chmod 755 bin/busybox
for name in $(seq 1 300); do ln -s /bin/busybox usr/bin/applet$name; done
head -c 600000 /dev/urandom >lib/ld-musl.so.1; ln -s ld-musl.so.1 lib/libc.so
echo 3.20 >etc/alpine-release; echo root:x:0:0::/root:/bin/ash >etc/passwd; echo 'root:*::0:::::' >etc/shadow
chown 0:42 etc/shadow; chmod 640 etc/shadow; mknod dev/null c 1 3; chmod 666 dev/null
"];

/// A large system with /bin links, hard links, capabilities and package lists; then an update, and
/// a cleanup.
const DEBIAN: &[&str] = &[
    "
mkdir -p usr/bin usr/lib/x86_64-linux-gnu usr/share/doc var/lib/dpkg/info var/cache/apt/archives var/log etc/default tmp
ln -s usr/bin bin; ln -s usr/lib lib; chmod 1777 tmp
for n in $(seq 1 400); do mkdir usr/share/doc/package$n; echo $n >usr/share/doc/package$n/copyright; echo list $n >var/lib/dpkg/info/package$n.list; done
head -c 300000 /dev/urandom >usr/bin/perl; ln usr/bin/perl usr/bin/perl5.36; chmod 755 usr/bin/perl; head -c 70000 /dev/urandom >usr/bin/su
chmod 4755 usr/bin/su; head -c 50000 /dev/urandom >usr/bin/ping; setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 usr/bin/ping
seq 1 5000 >var/lib/dpkg/status; truncate -s 3M var/log/lastlog; mkdir var/log/journal; setfacl -m g:4:rx var/log/journal 2>/dev/null || :
chown -R 6:6 var/cache/apt/archives; chmod 2755 var/log/journal; touch -d '2001-02-03 04:05:06.789' etc/default/locale
",
    "
mkdir -p var/lib/dpkg/info usr/bin var/cache/apt/archives; seq 1 6000 >var/lib/dpkg/status; echo new >var/lib/dpkg/info/curl.list
head -c 200000 /dev/urandom >usr/bin/curl; chmod 755 usr/bin/curl; head -c 90000 /dev/urandom >var/cache/apt/archives/curl.deb
head -c 310000 /dev/urandom >usr/bin/perl
",
    "mkdir -p var/cache/apt/archives usr/share; touch var/cache/apt/archives/.wh.curl.deb usr/share/.wh.doc usr/.wh.absent",
];

/// Names that are removed, added again, and removed again.
const WHITEOUTS: &[&str] = &[
    "mkdir -p a/b/c d; for n in 1 2 3 4 5 6; do echo $n >a/b/c/f$n; echo $n >d/g$n; done; ln a/b/c/f1 d/hard; ln -s a/b d/soft",
    "mkdir -p a/b/c d; touch a/b/c/.wh.f1 d/.wh.g2",
    "mkdir -p a/b/c; echo again >a/b/c/f1; touch a/b/c/.wh.f2",
    "mkdir -p a/b d; touch a/b/.wh.c d/.wh.soft",
    "mkdir -p a/b/c; echo fresh >a/b/c/fresh",
    "touch .wh.d; echo top >top",
    "mkdir d; chmod 700 d; echo d >d/only; touch .wh.top",
];

/// Opaque directories, which hide everything that lower layers have in them, at several depths.
const OPAQUE: &[&str] = &[
    "mkdir -p one/two/three other/deep/er; for n in $(seq 1 50); do echo $n >one/two/three/f$n; echo $n >other/f$n; done; echo r >root",
    "mkdir -p one/two/three; touch one/two/three/.wh..wh..opq; echo new >one/two/three/new",
    "mkdir -p other/deep; echo kept >other/deep/kept; touch other/.wh..wh..opq",
    "mkdir -p one; touch one/.wh..wh..opq",
    "mkdir -p one/two; echo last >one/two/last; setfattr -n user.note -v x one",
];

fn hundred_layers() -> Vec<String> {
    let layer = |n: usize| {
        let removed = if n > 10 && n.is_multiple_of(3) {
            format!("touch dir{0}/.wh.f{1};", (n - 7) % 9, n - 7)
        } else {
            String::new()
        };
        let opaque = if n == 60 { "touch dir4/.wh..wh..opq;" } else { "" };
        format!(
            "for d in 0 1 2 3 4 5 6 7 8; do mkdir -p dir$d; done; head -c {} /dev/urandom >dir{}/f{n}; echo {n} >same; {removed}{opaque}",
            n * 137,
            n % 9
        )
    };
    (0..100).map(layer).collect()
}

/// Builds one image from an OCI layout with these layers, and another from the extracted layers.
/// Compares the two trees and the two images.
fn compare(name: &str, scripts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let layers: Vec<PathBuf> =
        (0..scripts.len()).map(|number| folder.path().join(format!("layer{number}"))).collect();
    for (layer, script) in layers.iter().zip(scripts) {
        fs::create_dir(layer).unwrap();
        sh(layer, script);
    }
    let layout = Layout::new(folder.path().join("oci"));
    let manifest = layout.image(&layers, "amd64");
    layout.index(&[manifest + "}"]);
    let result = folder.path().join("result");
    fs::create_dir(&result).unwrap();
    for layer in &layers {
        let archive = folder.path().join("layer.tar");
        sh(
            layer,
            &format!(
                "tar --xattrs --xattrs-include='*' --acls --numeric-owner -cf '{}' .",
                archive.display()
            ),
        );
        extract(&result, &archive);
    }
    let stored = Tree::read(&layout.root, 1).unwrap();
    assert!(stored.is_container_image(), "{name}");
    let unpacked = stored.unpack_container(&Choice::default(), &std::env::temp_dir()).unwrap();
    let extracted = Tree::read(&result, 2).unwrap();
    let mut found = Vec::new();
    let told = &mut |difference: Difference| {
        found.push(difference);
        Ok(())
    };
    Tree::compare(&unpacked, &extracted, told).unwrap();
    // Extraction changes the times of directories.
    let is_directory = |path: &[u8]| result.join(OsStr::from_bytes(path)).is_dir();
    found.retain(|difference| {
        !(matches!(difference.what, What::Modified(..)) && is_directory(&difference.path))
    });
    assert!(found.is_empty(), "{name}: {found:?}");
    let built = image(unpacked);
    assert!(built == image(extracted), "{name}");
    let path = folder.path().join("image");
    fs::write(&path, built).unwrap();
    e2fsck_clean(&path);
}

fn extract(into: &Path, archive: &Path) {
    sh(into, &format!("LAYER='{}'\n{EXTRACT}", archive.display()));
}

#[test]
fn layouts_give_what_a_plain_extraction_gives() {
    if !require(&["root", "tar", "zstd", "xz", "setfattr", "e2fsck"]) {
        return;
    }
    let hundred = hundred_layers();
    let hundred: Vec<&str> = hundred.iter().map(String::as_str).collect();
    for (name, scripts) in [
        ("alpine", ALPINE),
        ("debian", DEBIAN),
        ("whiteouts", WHITEOUTS),
        ("opaque directories", OPAQUE),
        ("100 layers", &hundred[..]),
    ] {
        compare(name, scripts);
    }
}
