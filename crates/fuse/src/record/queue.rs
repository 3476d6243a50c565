//! The queue of events on their way to the writer.
//!
//! The thread that answers a request pushes the event, and does not wake the writer for each event:
//! a wake-up would cost this thread more than the rest of the recording. The writer takes the
//! events when the queue is half full, or after a timeout.

use std::time::Duration;

use blockyard_sync::{Condvar, Mutex, rank};

/// A queue with room for a fixed number of events. A push to a full queue waits.
pub(super) struct Queue<T: Send> {
    room: usize,
    waiting: Mutex<Waiting<T>>,
    /// Signalled when the queue becomes half full, when a push finds it full, and when it is
    /// closed.
    came: Condvar,
    /// Signalled when there is room again, and when the queue is closed.
    taken: Condvar,
}

struct Waiting<T> {
    events: Vec<T>,
    is_closed: bool,
}

impl<T: Send> Queue<T> {
    pub(super) fn new(room: usize) -> Self {
        assert!(room >= 2, "room for {room} events");
        let waiting = Waiting { events: Vec::new(), is_closed: false };
        let waiting = Mutex::new(rank::LEAF, waiting);
        Self { room, waiting, came: Condvar::new(), taken: Condvar::new() }
    }

    /// Adds an event. A closed queue drops it.
    pub(super) fn push(&self, event: T) {
        let mut waiting = self.waiting.lock();
        while waiting.events.len() >= self.room && !waiting.is_closed {
            self.came.notify_one();
            waiting = self.taken.wait(waiting);
        }
        if waiting.is_closed {
            return;
        }
        waiting.events.push(event);
        if waiting.events.len() == self.room / 2 {
            self.came.notify_one();
        }
    }

    /// Waits until the queue is half full or closed, but no longer than `patience`. Then moves all
    /// events into `into`, which must be empty. Returns whether more may come.
    pub(super) fn take(&self, into: &mut Vec<T>, patience: Duration) -> bool {
        debug_assert!(into.is_empty(), "events that nobody wrote");
        let mut waiting = self.waiting.lock();
        if waiting.events.len() < self.room / 2 && !waiting.is_closed {
            waiting = self.came.wait_for(waiting, patience).0;
        }
        std::mem::swap(&mut waiting.events, into);
        let goes_on = !waiting.is_closed;
        drop(waiting);
        self.taken.notify_all();
        goes_on
    }

    /// Closes the queue: no more events come.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.came.notify_all();
        self.taken.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn everything_comes_in_order_through_little_room() {
        let queue = Arc::new(Queue::new(4));
        let sender = Arc::clone(&queue);
        let sends = thread::spawn(move || {
            (0..1000).for_each(|number| sender.push(number));
            sender.close();
        });
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        loop {
            let goes_on = queue.take(&mut batch, Duration::from_millis(100));
            assert!(batch.len() <= 4);
            all.append(&mut batch);
            if !goes_on {
                break;
            }
        }
        sends.join().unwrap();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn who_sends_to_a_closed_queue_does_not_wait() {
        let queue = Queue::new(2);
        queue.push(1);
        queue.push(2);
        queue.close();
        queue.push(3);
        let mut left = Vec::new();
        assert!(!queue.take(&mut left, Duration::from_secs(60)));
        assert_eq!(left, [1, 2]);
    }
}
