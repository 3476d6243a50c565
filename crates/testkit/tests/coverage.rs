//! A part of docs/testing.md lists what the tests try. It must agree with the tables in
//! [`blockyard_testkit::coverage`]; `BLESS=1` rewrites it.

#![allow(clippy::unwrap_used)]

use blockyard_testkit::coverage::{BLOCKS, FEATURES, OPERATIONS, TRIED, page};
use std::path::Path;

const BEGIN: &str = "<!-- coverage: begin (BLESS=1 cargo test -p blockyard-testkit --test coverage) -->\n";
const END: &str = "<!-- coverage: end -->\n";

/// The part of docs/testing.md between the marks must be what [`page`] now makes from the tables.
#[test]
fn the_page_says_what_the_tables_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testing.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("docs/testing.md has the mark of the beginning");
    let (found, after) = rest.split_once(END).expect("docs/testing.md has the mark of the end");
    let wanted = page();
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
        return;
    }
    assert!(
        found == wanted,
        "docs/testing.md is stale: BLESS=1 cargo test -p blockyard-testkit --test coverage"
    );
}

/// Every operation, block size and feature in the tables is a known one, and each image has a
/// feature. A misspelt name would show as an empty cell.
#[test]
fn tables_use_known_names() {
    for tried in TRIED {
        let unknown = tried.operations.iter().find(|operation| !OPERATIONS.contains(operation));
        assert_eq!(unknown, None, "{}", tried.test);
        for image in tried.images {
            assert!(image.1.iter().all(|kib| BLOCKS.contains(kib)), "{}: {image:?}", tried.test);
            assert!(image.2.iter().all(|feature| FEATURES.contains(feature)), "{}: {image:?}", tried.test);
            assert!(!image.2.is_empty(), "{}: {image:?}", tried.test);
        }
    }
}
