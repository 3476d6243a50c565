//! Trees changed by rules, compared with trees that GNU tar and coreutils make by the same rules.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use blockyard_build::{Builder, Rules, Tree};
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::Timestamp;
use blockyard_testkit::require;

fn image(tree: Tree) -> Vec<u8> {
    let plan = Builder { time: Some(1), ..Builder::default() }.plan(tree).unwrap();
    let device = MemoryDevice::new(plan.bytes());
    plan.write(&device).unwrap();
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn sh(folder: &Path, script: &str) {
    let status = Command::new("sh").arg("-ec").arg(script).current_dir(folder).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Makes a tree in the folder `source`, and a copy in the folder `changed`. The script `change`
/// then changes the copy.
fn with(change: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    sh(
        folder.path(),
        "mkdir -p source/src/deep source/doc source/empty; cd source; echo 1 >src/a.c; echo 2 >src/a.o; echo 3 >src/deep/b.o
         echo 4 >src/deep/b.c; ln src/a.c doc/hard.c; ln -s ../src/a.c doc/link.c; mkfifo pipe; chown 1000:1000 src/a.c doc
         chown 1005:7 src/deep; truncate -s 100k sparse; echo end >>sparse; chmod 4755 src/deep/b.c; setfattr -n user.x -v y src/deep/b.c
         setfacl -m u:7:rwx src/a.o src",
    );
    sh(folder.path(), "cp -a source changed");
    sh(&folder.path().join("changed"), change);
    folder
}

fn same(change: &str, rules: &Rules) {
    if !require(&["root", "tar", "setfattr", "setfacl"]) {
        return;
    }
    let folder = with(change);
    let source = folder.path().join("source");
    // The result is the same whether or not the names that the rules leave out were read.
    for mut tree in [Tree::read(&source, 2).unwrap(), Tree::read_by(&source, 2, rules).unwrap()] {
        tree.apply(rules);
        assert!(image(tree) == image(Tree::read(&folder.path().join("changed"), 2).unwrap()), "{change}");
    }
    // The same for an archive.
    let archive = folder.path().join("source.tar");
    sh(folder.path(), "tar --xattrs --acls --sparse --sort=name -C source -cf source.tar .");
    let file = std::fs::File::open(&archive).unwrap();
    let mut tree = Tree::read_archive(file, &archive, &std::env::temp_dir()).unwrap();
    tree.apply(rules);
    assert!(image(tree) == image(Tree::read(&folder.path().join("changed"), 2).unwrap()), "{change}");
}

fn all<T: std::str::FromStr<Err = String>>(texts: &[&str]) -> Vec<T> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn names_are_left_out_as_tar_does() {
    for patterns in
        [&["*.o"][..], &["deep"], &["./src/deep"], &["src/*"], &["/src/a.c", "pi?e"], &["[a-c].c"]]
    {
        // The expected tree goes through an archive that tar makes with these exclusions.
        let anchored = |pattern: &&str| match pattern.strip_prefix('/') {
            Some(whole) => format!("--anchored --exclude='./{whole}' --no-anchored"),
            None => format!("--exclude='{}'", pattern.trim_start_matches("./")),
        };
        let options: Vec<String> = patterns.iter().map(anchored).collect();
        let change = format!(
            "tar --xattrs --acls --sparse {} -cf ../kept.tar .; find . -mindepth 1 -delete
             tar --xattrs --xattrs-include='*' --acls -xpf ../kept.tar",
            options.join(" ")
        );
        same(&change, &Rules { exclude: all(patterns), ..Rules::default() });
    }
}

/// `Tree::read_by` does not read what the rules leave out. An earlier version read excluded
/// directories, and then left them out of the image.
#[test]
fn what_is_left_out_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    for name in ["a", "b"] {
        std::fs::create_dir_all(top.join(name).join("deep")).unwrap();
        std::fs::write(top.join(name).join("deep/file"), name).unwrap();
    }
    std::fs::create_dir(top.join("c")).unwrap();
    let cases: [(&[&str], &[&str], usize); 9] = [
        (&[], &[], 7),
        (&["deep"], &[], 3),
        (&["/a"], &[], 4),
        (&["file"], &[], 5),
        (&["/d*", "b/*"], &[], 5),
        (&[], &["/a/deep"], 3),
        (&[], &["/b*"], 3),
        (&["file"], &["/a/*"], 2),
        // Something named `deep` could be anywhere.
        (&[], &["deep"], 7),
    ];
    for (exclude, include, count) in cases {
        let rules = Rules { exclude: all(exclude), include: all(include), ..Rules::default() };
        let read = Tree::read_by(top, 2, &rules).unwrap();
        assert_eq!(read.names(), count, "without {exclude:?}, only {include:?}");
    }
}

#[test]
fn only_what_is_included_is_taken() {
    let change = "rm -r src/a.o src/deep/b.o pipe empty sparse doc/link.c doc/hard.c; rmdir doc";
    same(change, &Rules { include: all(&["src/*.c"]), ..Rules::default() });
    same(
        "rm -r src doc/link.c pipe sparse",
        &Rules { include: all(&["doc", "empty"]), exclude: all(&["link.c"]), ..Rules::default() },
    );
}

#[test]
fn owners_times_and_permissions_follow_the_rules() {
    // On a file system, chown clears set-id bits. `Tree::apply` keeps them.
    same("chown -hR 5:6 .; chmod 4755 src/deep/b.c", &Rules { squash: Some((5, 6)), ..Rules::default() });
    same(
        "chown -h 2000:2000 src/a.c doc; chown -h 2005:7 src/deep",
        &Rules { owners: all(&["u:1000:2000:10", "g:1000:2000"]), ..Rules::default() },
    );
    same(
        "setfacl -b src/a.o src; setfacl -m u:70:rwx src/a.o src",
        &Rules { owners: all(&["u:7:70"]), ..Rules::default() },
    );
    same(
        "chown -h 9 src/deep/b.c; chmod 4755 src/deep/b.c; chown -h :8 src/deep/b.o; chmod 600 src/deep/b.o src/a.o; chmod 711 src; chmod 700 .",
        &Rules {
            chown: vec![("b.*".parse().unwrap(), None, Some(8)), ("b.c".parse().unwrap(), Some(9), None)],
            chmod: vec![
                ("*.o".parse().unwrap(), 0o600),
                ("/src".parse().unwrap(), 0o711),
                ("/".parse().unwrap(), 0o700),
            ],
            ..Rules::default()
        },
    );
    same(
        "setfacl -b src/a.o src; chmod g=rwx src/a.o src; setfattr -x user.x src/deep/b.c",
        &Rules { removes_attributes: true, ..Rules::default() },
    );
    let modified = Some(Timestamp::from_seconds(-7));
    same("find . -depth -exec touch -h -d @-7 {} +", &Rules { modified, ..Rules::default() });
}
