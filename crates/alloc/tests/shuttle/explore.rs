//! Running a scenario over many schedules.

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// The depth of the PCT scheduler, which runs the second half of the schedules. It is one more than
/// the number of priority changes in a schedule.
const DEPTH: usize = 4;

/// Runs `scenario` over `schedules` schedules, or twenty times as many when asked for full runs.
pub(crate) fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let seed = blockyard_testkit::seed(0x5ced);
    let schedules = if blockyard_testkit::full_matrix() { schedules * 20 } else { schedules };
    let scenario = Arc::new(scenario);
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    let random = RandomScheduler::new_from_seed(seed, schedules / 2);
    let body = Arc::clone(&scenario);
    Runner::new(random, config.clone()).run(move || body());
    let priorities = PctScheduler::new_from_seed(seed, DEPTH, schedules.div_ceil(2));
    Runner::new(priorities, config).run(move || scenario());
}

/// What one thread does with the shared value.
pub(crate) type Body<T> = Box<dyn FnOnce(&T) + Send>;

/// Runs the given bodies as threads, all of them with the same shared value, and waits for them.
pub(crate) fn together<T: Send + Sync + 'static>(shared: &Arc<T>, bodies: Vec<Body<T>>) {
    let threads: Vec<_> = bodies
        .into_iter()
        .map(|body| {
            let shared = Arc::clone(shared);
            shuttle::thread::spawn(move || body(&shared))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
