//! Whole images: checks a valid base with edits, and expects the same findings from one thread and
//! from two.

#![no_main]

use blockyard_check::{Options, check};
use blockyard_fuzz::edited_image;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let image = edited_image(data);
    let one = check(&*image, &Options { threads: Some(1), ..Options::default() });
    // Only for some inputs: starting threads dominates the run time.
    if data.len() % 16 == 5 {
        let two = check(&*image, &Options { threads: Some(2), ..Options::default() });
        assert_eq!(one.ok(), two.ok());
    }
});
