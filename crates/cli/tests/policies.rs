//! `policy show` explains every slot, filling and tunable in plain words, and tunables can be
//! overridden like slots.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

fn blockyard(line: &str) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_blockyard"))
        .args(line.split_whitespace())
        .env_remove("COLUMNS")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Lines used to have up to 142 characters and to contain Rust paths in brackets, and fillings were
/// named without an explanation.
#[test]
fn every_slot_and_filling_has_a_line_of_explanation() {
    let (_, list, _) = blockyard("policy list");
    for preset in list.lines().map(|line| line.split(' ').next().unwrap()) {
        let (is_done, text, errors) = blockyard(&format!("policy show {preset}"));
        assert!(is_done, "{errors}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 100, "{preset}: {widest}: {text}");
        for mark in ["`", "**", "crate::", "[", "# "] {
            assert!(!text.contains(mark), "{preset}: {mark}: {text}");
        }
        for part in [
            "Idea. ",
            "When it wins. ",
            "When it loses. ",
            "Parameters. ",
            "busy: what happens at a group whose",
        ] {
            assert!(text.contains(part), "{preset}: {part}: {text}");
        }
    }
    let (_, text, _) = blockyard("policy show linux-6.18:busy=wait:mb_max_to_scan=50");
    for line in [
        "  * wait  Wait for it.",
        "    skip  Pass it over until the last criterion.",
        "mb_max_to_scan: 50 (default: 200)",
        "    Candidates looked at before the best so far is taken.",
        "mb_max_linear_groups: default, 4 on rotating devices, otherwise 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let (_, json, _) = blockyard("policy show --json yard:mb_stream_req=4");
    let object: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&object["tunables"]["mb_stream_req"], &object["tunables"]["mb_prefetch"]),
        (&4.into(), &Value::Null)
    );
    for (slot, filling) in object["slots"].as_object().unwrap() {
        assert!(object["about"][slot].as_str().is_some_and(|about| about.len() > 10), "{slot}");
        let fillings = object["fillings"][slot].as_object().unwrap();
        assert!(fillings.is_empty() || fillings.contains_key(filling.as_str().unwrap()), "{slot}");
    }
}

/// Only slots used to accept overrides, so `linux-6.18:mb_max_to_scan=50` was refused.
#[test]
fn tunables_are_overrides_that_change_decisions() {
    let run = |policy: &str| {
        blockyard(&format!(
            "lab run fallocate2 --ops 100 --workers 2 --interleave lockstep --memory 256M --policy {policy} --json"
        ))
    };
    let row = |policy: &str| -> Value {
        let (is_done, text, errors) = run(policy);
        assert!(is_done, "{policy}: {errors}");
        serde_json::from_str(text.lines().next().unwrap()).unwrap()
    };
    // A request of 8 KiB is two blocks, so the criterion for powers of two serves it, unless
    // `mb_order2_req` reserves that criterion for longer requests.
    let (with, without) = (row("linux-6.18"), row("linux-6.18:mb_order2_req=20"));
    assert!(with["hits"]["p2_aligned"].as_u64() > Some(100), "{with}");
    assert_eq!(without["hits"]["p2_aligned"], 0, "{without}");
    assert_eq!(without["policy"], "linux-6.18:mb_order2_req=20");
    for (wrong, why) in [
        ("linux-6.18:mb_max_to_scan=x", "numbers from 0 to 4294967295"),
        ("linux-6.18:mb_best_avail_max_trim_order=65", "numbers from 0 to 64"),
        ("linux-6.18:mb_nothing=1", "mb_max_to_scan"),
        ("linux-6.18:mb_group_prealloc=500000", "mb_group_prealloc"),
    ] {
        let (is_done, _, errors) = run(wrong);
        assert!(!is_done && errors.contains(why) && errors.lines().count() == 1, "{wrong}: {errors}");
    }
}
