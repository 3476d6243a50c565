//! Repairs whole images in memory: each is a valid base image that the input has edited. If the
//! plan of the repair claims to be complete, a check after the plan was applied must find the image
//! clean.

#![no_main]

use blockyard_check::{Options, RepairOptions, check, plan};
use blockyard_fuzz::edited_image;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let image = edited_image(data);
    let options = Options { threads: Some(1), ..Options::default() };
    let Ok(plan) = plan(
        &*image,
        &RepairOptions { check: options.clone(), now: 1_700_000_000, ..RepairOptions::default() },
    ) else {
        return;
    };
    let complete = plan.is_complete();
    plan.apply(&*image).expect("memory takes every write");
    let after = check(&*image, &options);
    assert!(!complete || after.is_ok_and(|report| report.examined && report.is_clean()));
});
