//! Container images made with GNU tar. The unpacked root file system equals a tree in which each
//! layer's changes were made directly. Also tests the choice of an image, damaged images, and the
//! merging of trees.

#![allow(clippy::unwrap_used)]

#[path = "support/layout.rs"]
mod layout;

use std::fs;
use std::path::{Path, PathBuf};

use blockyard_build::{Builder, Choice, Error, Tree};
use blockyard_testkit::{e2fsck_clean, require};
use layout::{Layout, image, sh};
use sha2::{Digest, Sha256};

/// For each layer, a script that makes the layer, and a script that makes the same change directly
/// in the expected tree. The first layer needs no second script: it is copied.
const LAYERS: [(&str, &str); 6] = [
    (
        "mkdir -p usr/lib etc/conf.d var/cache/deep/er; ln -s usr/lib lib; echo one >usr/lib/one; echo base >etc/base
         echo a >etc/conf.d/a; echo b >etc/conf.d/b; echo c >var/cache/deep/er/c; echo l >link1; ln link1 link2
         mknod null c 1 3; chmod 4755 etc/base; chown 7:8 usr/lib/one; setfattr -n user.note -v x etc/base",
        "",
    ),
    // Names are removed and added, and a directory replaces a link.
    (
        "mkdir -p etc/conf.d lib; echo new >etc/conf.d/c; touch etc/conf.d/.wh.a .wh.link1; echo two >lib/two; rmdir lib 2>/dev/null || :
         mkdir -p usr/lib; echo three >usr/lib/three",
        "rm etc/conf.d/a link1; echo new >etc/conf.d/c; rm lib; mkdir lib; echo two >lib/two; echo three >usr/lib/three",
    ),
    // An opaque directory hides all that lower layers have in it, and holds a new file. Names that
    // begin with `.wh..wh.` are no content.
    (
        "mkdir -p var/cache/deep; touch var/cache/deep/.wh..wh..opq; echo fresh >var/cache/deep/fresh; mkdir .wh..wh.plnk; echo note >.wh..wh.plnk/1.2",
        "rm -r var/cache/deep/er; echo fresh >var/cache/deep/fresh",
    ),
    // A directory becomes a file, and a file a directory.
    ("echo file >var; mkdir -p etc/base; echo in >etc/base/in", "rm -r var; echo file >var; rm etc/base; mkdir etc/base; echo in >etc/base/in"),
    // A layer removes a name and adds it again.
    ("touch .wh.etc; mkdir etc; echo again >etc/again", "rm -r etc; mkdir etc; echo again >etc/again"),
    ("mkdir -p usr; touch usr/.wh.lib; echo x >usr/x; touch .wh.nothing", "rm -r usr/lib; echo x >usr/x"),
];

/// Folders with the layers, and one with the expected result.
fn layers(folder: &Path) -> (Vec<PathBuf>, PathBuf) {
    let result = folder.join("result");
    fs::create_dir(&result).unwrap();
    let mut made = Vec::new();
    for (number, (layer, change)) in LAYERS.iter().enumerate() {
        let at = folder.join(format!("layer{number}"));
        fs::create_dir(&at).unwrap();
        sh(&at, layer);
        if number == 0 {
            sh(&result, &format!("cp -a '{}/.' .", at.display()));
        } else {
            sh(&result, change);
        }
        made.push(at);
    }
    (made, result)
}

#[test]
fn layers_lie_over_each_other_as_extracted() {
    if !require(&["root", "tar", "zstd", "setfattr", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (layers, result) = layers(folder.path());
    let expected = image(Tree::read(&result, 2).unwrap());
    let path = folder.path().join("image");
    fs::write(&path, &expected).unwrap();
    e2fsck_clean(&path);
    let layout = Layout::new(folder.path().join("oci"));
    let manifest = layout.image(&layers, "amd64");
    layout.index(&[manifest + "}"]);
    let stored = Tree::read(&layout.root, 1).unwrap();
    assert!(stored.is_container_image());
    let unpack = |tree: &Tree| tree.unpack_container(&Choice::default(), &std::env::temp_dir()).unwrap();
    assert!(image(unpack(&stored)) == expected, "a folder");
    // The same layout as an archive.
    let archive = folder.path().join("oci.tar.gz");
    sh(&layout.root, &format!("tar -czf '{}' .", archive.display()));
    let stored =
        Tree::read_archive(fs::File::open(&archive).unwrap(), &archive, &std::env::temp_dir()).unwrap();
    assert!(stored.is_container_image());
    assert!(image(unpack(&stored)) == expected, "an archive");
}

#[test]
fn one_image_of_several_is_chosen() {
    if !require(&["tar", "zstd"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(folder.path().join("oci"));
    let image_of = |name: &str, architecture: &str| {
        let at = folder.path().join(name);
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("name"), name).unwrap();
        layout.image(&[at], architecture)
    };
    let named = |descriptor: String, name: &str| {
        format!(r#"{descriptor},"annotations":{{"org.opencontainers.image.ref.name":"{name}"}}}}"#)
    };
    let arm = image_of("arm", "arm64");
    let amd = image_of("amd", "amd64");
    let old = image_of("old", "amd64");
    let list = format!(
        r#"{{"manifests":[{arm},"platform":{{"os":"linux","architecture":"arm64","variant":"v8"}}}},{amd}}}]}}"#
    );
    let list = layout.blob("index.v1+json", list.as_bytes());
    layout.index(&[named(list, "new"), named(old, "old")]);
    let tree = Tree::read(&layout.root, 1).unwrap();
    let chosen = |reference: Option<&str>, platform: Option<&str>| -> Result<u64, Error> {
        let choice = Choice {
            reference: reference.map(str::to_owned),
            platform: platform.map(|text| text.parse().unwrap()),
        };
        let tree = tree.unpack_container(&choice, &std::env::temp_dir())?;
        let plan = Builder::default().plan(tree)?;
        Ok(plan.summary().file_bytes)
    };
    assert_eq!(chosen(Some("new"), Some("linux/amd64")).unwrap(), 3);
    assert_eq!(chosen(None, Some("linux/arm64")).unwrap(), 3);
    assert_eq!(chosen(Some("old"), None).unwrap(), 3, "the only one of that name, whatever machine this is");
    for (reference, platform, told) in [
        (None, Some("linux/amd64"), "2 images fit linux/amd64"),
        (Some("new"), Some("linux/arm/v7"), "0 images fit linux/arm/v7"),
        (Some("other"), None, "no image is named other; there are: new, old"),
        (Some("new"), Some("linux/arm64/v9"), "(linux/arm64/v8)"),
    ] {
        let error = chosen(reference, platform).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn an_archive_of_docker_is_unpacked() {
    if !require(&["root", "tar", "setfattr"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (layers, result) = layers(folder.path());
    let saved = folder.path().join("saved");
    fs::create_dir(&saved).unwrap();
    let (mut names, mut digests) = (Vec::new(), Vec::new());
    for (number, layer) in layers.iter().enumerate() {
        let file = saved.join(format!("{number}.tar"));
        sh(layer, &format!("tar --xattrs --xattrs-include='*' --sort=name -cf '{}' .", file.display()));
        let digest: String =
            Sha256::digest(fs::read(&file).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
        names.push(format!(r#""{number}.tar""#));
        digests.push(format!(r#""sha256:{digest}""#));
    }
    let config =
        format!(r#"{{"os":"linux","architecture":"amd64","rootfs":{{"diff_ids":[{}]}}}}"#, digests.join(","));
    fs::write(saved.join("config.json"), config).unwrap();
    let manifest =
        format!(r#"[{{"Config":"config.json","RepoTags":["app:1"],"Layers":[{}]}}]"#, names.join(","));
    fs::write(saved.join("manifest.json"), manifest).unwrap();
    let archive = folder.path().join("saved.tar");
    sh(&saved, &format!("tar -cf '{}' .", archive.display()));
    let tree =
        Tree::read_archive(fs::File::open(&archive).unwrap(), &archive, &std::env::temp_dir()).unwrap();
    let choice = Choice { reference: Some("app:1".to_owned()), platform: None };
    let unpacked = tree.unpack_container(&choice, &std::env::temp_dir()).unwrap();
    assert!(image(unpacked) == image(Tree::read(&result, 2).unwrap()));
    let other = Choice { reference: Some("app:2".to_owned()), platform: None };
    let error = tree.unpack_container(&other, &std::env::temp_dir()).unwrap_err().to_string();
    assert!(error.contains("app:1"), "{error}");
}

#[test]
fn a_layer_whose_file_has_holes_is_whole() {
    if !require(&["root", "tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let layer = folder.path().join("layer");
    fs::create_dir(&layer).unwrap();
    fs::write(layer.join("a"), vec![0; 1 << 20]).unwrap();
    fs::write(layer.join("b"), "text").unwrap();
    let layout = Layout::new(folder.path().join("oci"));
    let manifest = layout.image(std::slice::from_ref(&layer), "amd64");
    layout.index(&[manifest + "}"]);
    sh(&layout.root, "for file in blobs/sha256/*; do cp --sparse=always $file new; mv new $file; done");
    let tree = Tree::read(&layout.root, 1).unwrap();
    let unpacked = tree.unpack_container(&Choice::default(), &std::env::temp_dir()).unwrap();
    assert!(image(unpacked) == image(Tree::read(&layer, 1).unwrap()));
}

/// Each index lists the one below it many times, so that the number of paths to the image grows
/// with every level.
#[test]
fn an_index_that_is_listed_again_counts_once() {
    if !require(&["tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let layer = folder.path().join("layer");
    fs::create_dir(&layer).unwrap();
    let layout = Layout::new(folder.path().join("oci"));
    let unpacked = || {
        let tree = Tree::read(&layout.root, 1).unwrap();
        tree.unpack_container(&Choice::default(), &std::env::temp_dir()).map(drop)
    };
    let image = layout.image(&[layer], "amd64") + "}";
    let index_of = |entries: &[String]| {
        let text = format!(r#"{{"manifests":[{}]}}"#, entries.join(","));
        layout.blob("index.v1+json", text.as_bytes()) + "}"
    };
    let mut entry = index_of(std::slice::from_ref(&image));
    for _ in 0..2 {
        entry = index_of(&vec![entry; 40]);
    }
    layout.index(&vec![entry; 40]);
    unpacked().unwrap();
    layout.index(&[index_of(&vec![image; 65_536])]);
    let error = unpacked().unwrap_err().to_string();
    assert!(error.contains("more than 65536 images"), "{error}");
}

#[test]
fn what_is_damaged_or_leads_out_is_refused() {
    if !require(&["tar"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unpacked = |layout: &Layout| {
        let tree = Tree::read(&layout.root, 1).unwrap();
        tree.unpack_container(&Choice::default(), &std::env::temp_dir()).unwrap_err().to_string()
    };
    let layer = folder.path().join("layer");
    fs::create_dir(&layer).unwrap();
    fs::write(layer.join("file"), "text").unwrap();
    let layout = Layout::new(folder.path().join("damaged"));
    let manifest = layout.image(std::slice::from_ref(&layer), "amd64");
    layout.index(&[manifest + "}"]);
    for blob in fs::read_dir(layout.root.join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let before = fs::read(&path).unwrap();
        // An unpacker does not use the last byte of a layer, but the digest covers it.
        for at in [before.len() / 2, before.len() - 1] {
            let mut damaged = before.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            let error = unpacked(&layout);
            assert!(error.contains("its digest is"), "byte {at}: {error}");
        }
        fs::remove_file(&path).unwrap();
        let error = unpacked(&layout);
        assert!(error.contains("is missing"), "{error}");
        fs::write(&path, before).unwrap();
    }
    let outside = folder.path().join("outside.tar");
    sh(&layer, &format!("tar -P --transform='s,^,../,' -cf '{}' file", outside.display()));
    let layout = Layout::new(folder.path().join("outside"));
    let blob = layout.blob("layer.v1.tar", &fs::read(&outside).unwrap());
    let config = layout.blob("config.v1+json", br#"{"os":"linux","architecture":"amd64"}"#);
    let manifest = format!(r#"{{"config":{config}}},"layers":[{blob}}}]}}"#);
    let manifest = layout.blob("manifest.v1+json", manifest.as_bytes());
    layout.index(&[manifest + "}"]);
    let error = unpacked(&layout);
    assert!(error.contains("../file") && error.contains("leads out"), "{error}");
}

#[test]
fn sources_are_merged_in_order() {
    if !require(&["root", "tar", "setfattr"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (first, second, result) =
        (folder.path().join("first"), folder.path().join("second"), folder.path().join("result"));
    for path in [&first, &second, &result] {
        fs::create_dir(path).unwrap();
    }
    sh(
        &first,
        "mkdir -p a/b c; echo 1 >a/one; echo 1 >a/both; ln a/one a/hard; echo f >f; truncate -s 1M c/sparse; echo end >>c/sparse
         setfattr -n user.note -v x a",
    );
    sh(
        &second,
        "mkdir -p a/b c/d; chmod 700 a/b; echo 2 >a/both; echo 2 >a/two; mkdir f; echo in >f/in; ln a/two c/d/two",
    );
    sh(
        &result,
        &format!(
            "cp -a --sparse=always '{}/.' .; rm f; cp -a '{}/.' .; setfattr -x user.note a",
            first.display(),
            second.display()
        ),
    );
    let expected = image(Tree::read(&result, 2).unwrap());
    let archive = folder.path().join("second.tar");
    sh(&second, &format!("tar -cf '{}' .", archive.display()));
    let temporary = std::env::temp_dir();
    let merged = |second: Tree| Tree::merge(vec![Tree::read(&first, 2).unwrap(), second]).unwrap();
    assert!(image(merged(Tree::read(&second, 2).unwrap())) == expected);
    let second = Tree::read_archive(fs::File::open(&archive).unwrap(), &archive, &temporary).unwrap();
    assert!(image(merged(second)) == expected);
}
