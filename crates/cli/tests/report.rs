//! The HTML report of a run and the pictures of maps: a table of contents, a baseline, metadata
//! drawn apart from data, legends, and a size that suits the image.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

fn done(line: &str, more: &[&Path]) {
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(line.split_whitespace())
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Width and height of a picture in pixels.
fn size(svg: &str) -> (u32, u32) {
    let of = |name: &str| svg.split_once(&format!(" {name}=\"")).unwrap().1.split('"').next().unwrap();
    (of("width").parse().unwrap(), of("height").parse().unwrap())
}

/// The page used to be one long list of tables without navigation, and the reader had to work out
/// the differences between policies.
#[test]
fn the_page_has_contents_a_baseline_and_maps_that_tell_files_from_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    done(
        "lab run append64 --scale 0.001 --workers 1,4 --interleave lockstep --repeat 2 --memory 8G \
         --policy linux-6.16,linux-6.18,yard --out",
        &[&out],
    );
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    let places: Vec<&str> =
        page.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(places.len() > 8, "{places:?}");
    for place in &places {
        assert_eq!(page.matches(&format!("id=\"{place}\"")).count(), 1, "{place} is in the page, once");
    }
    for part in [
        "<h2 id=\"maps\">Allocation maps",
        "baseline: linux-6.16",
        "append64, lockstep: differences from linux-6.16",
        "%)</td>",
        ">metadata</text>",
        "A row is a group, a square 1/32 of it",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        page.contains(": free</text>") || page.contains(": no files, metadata in "),
        "stretches are left out"
    );
    for colour in ["fill=\"#0072b2\"", "fill=\"#d55e00\""] {
        assert!(page.contains(colour), "{colour}");
    }
    assert!(!page.contains("1 workers"), "one of a thing has no plural");
}

/// A picture used to have no legend. It was 204 pixels wide for one group, and thousands of pixels
/// high for many empty groups.
#[test]
fn a_map_has_a_legend_and_a_size_that_suits_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("map.svg");
    let drawn = |size_of_image: &str| {
        let image = folder.path().join(size_of_image);
        let file = folder.path().join("file");
        std::fs::write(&file, vec![b'x'; 300_000]).unwrap();
        done("mkfs", &[&image, Path::new(size_of_image), Path::new("-q")]);
        done("put", &[&image, &file, Path::new("/file")]);
        done("map --svg", &[&picture, &image]);
        std::fs::read_to_string(&picture).unwrap()
    };
    let small = drawn("4M");
    let (width, height) = size(&small);
    assert!((400..=900).contains(&width) && (60..=300).contains(&height), "{width} x {height}");
    for part in [">free</text>", ">files</text>", ">metadata</text>", "A row is a group"] {
        assert!(small.contains(part), "{part}: {small}");
    }
    let large = drawn("200G");
    let (width, height) = size(&large);
    assert!(width <= 2000 && height <= 1100 && large.len() < 200_000, "{width} x {height}, {}", large.len());
    assert!(
        large.contains("no files, metadata in") && large.contains("groups "),
        "empty stretches are left out"
    );
}
