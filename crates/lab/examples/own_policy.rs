//! A custom policy in the lab, compared with `linux-6.18`. It draws two groups from the inode's
//! number, and searches the emptier one first. It needs no change to blockyard itself.
//!
//! Run it with `cargo run --release -p blockyard-lab --example own_policy`.

use blockyard_alloc::Policy;
use blockyard_alloc::policy::code::{GroupChoice, Groups, Wish};
use blockyard_disk::GroupNr;
use blockyard_lab::figures::summary::tables;
use blockyard_lab::run::{Plan, run};
use blockyard_lab::workload::Workload;

fn main() -> anyhow::Result<()> {
    let workload = Workload::by_name("fallocate2", 1.0).expect("a workload of the lab");
    let plan = Plan { others: vec![policy()], ..Plan::new(workload, &["linux-6.18", "two-choices"]) };
    let outcome = run(&plan, |_, cell| eprintln!("{cell}"))?;
    for table in tables(&outcome.rows) {
        println!("{}", table.terminal(110));
    }
    Ok(())
}

/// `linux-6.18` except for the choice of groups.
pub(crate) fn policy() -> Policy {
    Policy::default().named("two-choices").with_groups(|_| Box::new(TwoChoices))
}

/// The emptier of two groups, then the other one.
struct TwoChoices;

impl GroupChoice for TwoChoices {
    fn walk(&self, wish: &Wish<'_>, groups: &mut dyn Groups) {
        let drawn = wish.request.inode.raw().wrapping_mul(0x9e37_79b1);
        let [one, other] = [drawn >> 16, drawn & 0xffff].map(|number| GroupNr::new(number % wish.groups));
        let [least, most] =
            if groups.look(one).free > groups.look(other).free { [other, one] } else { [one, other] };
        if !groups.visit(most) {
            groups.visit(least);
        }
    }
}
