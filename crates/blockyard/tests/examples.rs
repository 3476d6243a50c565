//! Runs the programs in `examples/`.

#[path = "../examples/check_and_repair.rs"]
mod check_and_repair;
#[path = "../examples/crash_and_recovery.rs"]
mod crash_and_recovery;
#[path = "../examples/edit_file.rs"]
mod edit_file;
#[path = "../examples/eight_writers.rs"]
mod eight_writers;
#[path = "../examples/make_image.rs"]
mod make_image;
#[path = "../examples/partition.rs"]
mod partition;

macro_rules! work {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn works() {
                super::super::$name::main().unwrap();
            }
        }
    )*};
}

mod examples {
    work!(check_and_repair crash_and_recovery edit_file eight_writers make_image partition);
}

/// Each example has fewer than sixty lines. The list of the examples here, all of which this file
/// runs, is complete.
#[test]
fn each_has_under_sixty_lines() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 60, "{} has {lines} lines", path.display());
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    let expected =
        ["check_and_repair", "crash_and_recovery", "edit_file", "eight_writers", "make_image", "partition"];
    assert_eq!(names, expected);
}
