//! Whole images: a valid base with edits, checked; and the same findings again with another number
//! of threads.

#![no_main]

use blockyard_check::{Options, check};
use blockyard_fuzz::edited_image;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let image = edited_image(data);
    let one = check(&*image, &Options { threads: Some(1), ..Options::default() });
    // Now and then, as starting threads is most of the time this takes.
    if data.len() % 16 == 5 {
        let two = check(&*image, &Options { threads: Some(2), ..Options::default() });
        assert_eq!(one.ok(), two.ok());
    }
});
