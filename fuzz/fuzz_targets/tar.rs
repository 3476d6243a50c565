//! Archives: any stream is refused or becomes a tree, and the archive of that tree gives the same
//! tree.

#![no_main]

use blockyard_build::{Error, Tree};
use blockyard_fuzz::sealed_headers;
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let folder = std::env::temp_dir();
    let name = Path::new("archive");
    // First the input as it is (it may be compressed), then the input with valid header checksums.
    for bytes in [data.to_vec(), sealed_headers(data)] {
        let Ok(tree) = Tree::read_archive(Cursor::new(bytes), name, &folder) else { continue };
        let _ = tree.is_container_image();
        // Holes can make files far too large to write in a test.
        if tree.data_bytes() > 1 << 20 {
            continue;
        }
        let mut archive = Vec::new();
        tree.write_archive(&mut archive, name).expect("a tree can be written");
        let again = match Tree::read_archive(Cursor::new(archive), name, &folder) {
            // Reading copies the content of all files to one temporary file, holes included. The
            // written archive has another order of files. In that order, a file with large holes
            // may reach beyond the largest offset of the temporary file.
            Err(Error::Source { .. }) => continue,
            again => again.expect("what was written can be read"),
        };
        Tree::compare(&tree, &again, &mut |found| panic!("{found:?}")).expect("both can be read");
    }
});
