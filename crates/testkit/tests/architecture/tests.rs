//! The search for cycles of modules, tested on small crates: it finds each cycle, and nothing else.

use std::fs;
use std::path::Path;

use crate::modules::Module;
use crate::rings::{self, Ring};

/// The cycles in a crate whose files have these names and texts.
fn rings_of(files: &[(&str, &str)]) -> Vec<Ring> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    rings::rings(&Module::read(&folder.path().join("lib.rs")))
}

fn names(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    rings_of(files).into_iter().map(|ring| ring.modules).collect()
}

#[test]
fn a_circle_of_three_is_found_with_its_places() {
    let rings = rings_of(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::{b::{self, Thing}, d::D};\n"),
        ("b.rs", "pub struct Thing;\nfn f() { let x = super::c::f(); }"),
        ("c.rs", "pub fn f() -> Vec<crate::a::A> { vec![] }"),
        ("d.rs", "pub struct D;"),
    ]);
    let [ring] = &rings[..] else { panic!("{rings:?}") };
    assert_eq!(ring.modules, ["a", "b", "c"]);
    let text = ring.text(Path::new("/"));
    for part in ["a, b, c in root", "a -> b", "b -> c", "c -> a", "b.rs:2", "c.rs:1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("-> d"), "{text}");
}

#[test]
fn arrows_one_way_are_no_circle() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use b::B;"),
        ("a.rs", "//! As [`crate::b`].\nuse crate::B; // crate::a\nconst TEXT: &str = \"crate::a::A\";"),
        ("b.rs", "pub(in crate::a) struct B; pub(crate) struct C; pub struct D<'a>(&'a str);"),
    ];
    assert_eq!(names(&files), Vec::<Vec<String>>::new());
}

#[test]
fn names_are_followed_to_where_they_are_defined() {
    // The root imports `Deep` as `B`, and `Shared`. So `crate::B` in `a` leads to `b::inner`, which
    // defines `Deep`. The path to `Shared` in `b::inner` leads to `a`.
    let files = [
        ("lib.rs", "mod a; mod b; pub use b::{inner::Deep as B}; use a::Shared;"),
        ("a.rs", "use crate::B; pub struct Shared;"),
        ("b.rs", "pub mod inner;"),
        ("b/inner.rs", "pub struct Deep; fn f(_: super::super::Shared) {}"),
    ];
    assert_eq!(names(&files), [["a", "b"]]);
    // A path to an item of another crate makes no arrow, whichever module re-exports the item.
    let foreign = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub use std::fmt; use crate::b::B;"),
        ("b.rs", "pub struct B; use crate::a::fmt::Debug;"),
    ];
    assert_eq!(names(&foreign), Vec::<Vec<String>>::new());
}

#[test]
fn children_are_compared_with_each_other_and_not_with_their_parent() {
    let parent = [
        ("lib.rs", "mod p;"),
        ("p.rs", "mod a; mod b; pub struct P(a::A, b::B);"),
        ("p/a.rs", "use super::P; pub struct A;"),
        ("p/b.rs", "use crate::p::{P, a::A}; pub struct B;"),
    ];
    assert_eq!(names(&parent), Vec::<Vec<String>>::new());
    let siblings = [
        ("lib.rs", "mod p;"),
        ("p.rs", "mod a; mod b;"),
        ("p/a.rs", "use super::b::B; pub struct A;"),
        ("p/b.rs", "pub struct B; mod inner { use super::super::a::A; }"),
    ];
    let rings = rings_of(&siblings);
    assert_eq!(rings.len(), 1);
    assert!(rings[0].text(Path::new("/")).starts_with("a, b in p\n"));
    // `p::a` uses `q`, and `q::z` uses `p::a`. These arrows count between `p` and `q`, the children
    // of the root.
    let across = [
        ("lib.rs", "mod p; mod q;"),
        ("p.rs", "mod a;"),
        ("p/a.rs", "use crate::q::Q;"),
        ("q.rs", "pub mod z; pub struct Q;"),
        ("q/z.rs", "fn f() { crate::p::a::f() }"),
    ];
    assert_eq!(names(&across), [["p", "q"]]);
}

#[test]
fn tests_make_no_arrows() {
    let files = [
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod c;"),
        (
            "a.rs",
            "use crate::b::B;\npub struct A { #[cfg(test)] seen: crate::b::B, n: u8 }\n\
             #[cfg(test)]\n#[allow(unused)]\nmod tests { use super::*; }",
        ),
        (
            "b.rs",
            "#[cfg(test)]\nuse crate::a::A;\n#[cfg(all(test, unix))]\npub(crate) fn f<T, U>() { crate::a::f() }\n\
             #[test]\nfn g() { crate::a::A; }\n#[cfg(test)]\nmod tests { use crate::a::A; }\npub struct B;",
        ),
    ];
    assert_eq!(names(&files), Vec::<Vec<String>>::new());
    let production = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "#[cfg(not(test))]\nuse crate::a::A;\npub struct B;"),
    ];
    assert_eq!(names(&production), [["a", "b"]]);
}
