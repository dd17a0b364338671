//! The writer's place, with real threads. (A file of its own: the model checker compiles the queue
//! alone.)

use std::time::{Duration, Instant};

use crate::database::queue::{ConnectionId, HoldLimits, Patience, SOON, TurnClaim, WriterQueue};
use std::sync::atomic::{AtomicU64, Ordering};

const GRACE: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(60);

#[test]
fn one_thread_cannot_wait_for_itself() {
    let q = WriterQueue::default();
    assert!(q.acquire(ConnectionId(1), TurnClaim::Firm, LONG));
    assert!(!q.acquire(ConnectionId(2), TurnClaim::Firm, LONG));
    q.release(ConnectionId(2));
    assert!(q.holds(ConnectionId(1)));
    q.release(ConnectionId(1));
    assert!(q.acquire(ConnectionId(2), TurnClaim::Firm, LONG));
}

#[test]
fn a_tentative_place_is_lost_to_a_waiter_and_not_a_firm_one() {
    let q = WriterQueue::default();
    assert!(q.acquire(ConnectionId(1), TurnClaim::Tentative(GRACE), LONG));
    std::thread::scope(|s| {
        s.spawn(|| assert!(q.acquire(ConnectionId(2), TurnClaim::Firm, LONG)));
    });
    assert!(q.holds(ConnectionId(2)));
    std::thread::scope(|s| {
        s.spawn(|| assert!(!q.acquire(ConnectionId(3), TurnClaim::Firm, 5 * GRACE)));
    });
    assert!(q.holds(ConnectionId(2)));
}

#[test]
fn a_tentative_holder_is_left_alone_for_its_grace_however_long_others_have_waited() {
    let q = WriterQueue::default();
    assert!(q.acquire(ConnectionId(1), TurnClaim::Firm, LONG));
    std::thread::scope(|s| {
        s.spawn(|| {
            assert!(q.acquire(ConnectionId(2), TurnClaim::Tentative(LONG), LONG));
            std::thread::sleep(20 * GRACE);
            assert!(q.acquire(ConnectionId(2), TurnClaim::Firm, Duration::ZERO), "nobody has taken it");
            q.release(ConnectionId(2));
        });
        while !q.has_waiters(1) {
            std::thread::yield_now();
        }
        s.spawn(|| assert!(q.acquire(ConnectionId(3), TurnClaim::Firm, LONG)));
        while !q.has_waiters(2) {
            std::thread::yield_now();
        }
        std::thread::sleep(5 * GRACE);
        q.release(ConnectionId(1));
    });
    assert!(q.holds(ConnectionId(3)));
}

#[test]
fn a_holder_that_reads_loses_a_long_grace() {
    let q = WriterQueue::default();
    assert!(q.acquire(ConnectionId(1), TurnClaim::Tentative(LONG), LONG));
    std::thread::scope(|s| {
        let waiter = s.spawn(|| q.acquire(ConnectionId(2), TurnClaim::Firm, LONG));
        while !q.has_waiters(1) {
            std::thread::yield_now();
        }
        q.doubt(ConnectionId(1), GRACE);
        assert!(waiter.join().unwrap());
    });
    assert!(q.holds(ConnectionId(2)));
}

#[test]
fn a_tentative_holder_that_waits_inside_keeps_the_place() {
    let q = WriterQueue::default();
    let done = AtomicU64::new(0);
    std::thread::scope(|s| {
        let (q, done) = (&q, &done);
        assert!(q.acquire(ConnectionId(1), TurnClaim::Tentative(Duration::ZERO), LONG));
        q.set_inside(ConnectionId(1), true);
        s.spawn(move || {
            assert!(q.acquire(ConnectionId(2), TurnClaim::Firm, LONG));
            assert_eq!(done.load(Ordering::SeqCst), 1);
            q.release(ConnectionId(2));
        });
        while !q.has_waiters(1) {
            std::thread::yield_now();
        }
        std::thread::sleep(40 * GRACE);
        done.store(1, Ordering::SeqCst);
        q.release(ConnectionId(1));
    });
}

#[test]
fn patience_with_a_turn_is_not_patience_with_all_of_them() {
    let q = WriterQueue::default();
    let turn = Duration::from_secs(1);
    let patience = Patience { all: LONG, kept: Some(HoldLimits { held: turn, inside: turn }), is_last: false };
    std::thread::scope(|s| {
        let (q, (taken, is_taken)) = (&q, std::sync::mpsc::channel());
        for n in 0..12 {
            let taken = taken.clone();
            s.spawn(move || {
                assert!(q.acquire(ConnectionId(n), TurnClaim::Firm, LONG));
                q.set_inside(ConnectionId(n), true);
                taken.send(()).unwrap();
                std::thread::sleep(turn / 8);
                q.release(ConnectionId(n));
            });
        }
        is_taken.recv().unwrap();
        while !q.has_waiters(11) {
            std::thread::yield_now();
        }
        assert!(q.acquire(ConnectionId(20), TurnClaim::Firm, patience));
        // It may have come between a release and the next holder, before others that wait.
        q.release(ConnectionId(20));
    });
    assert!(q.acquire(ConnectionId(20), TurnClaim::Firm, LONG));
    std::thread::scope(|s| {
        s.spawn(|| assert!(!q.acquire(ConnectionId(21), TurnClaim::Firm, patience)));
    });
}

#[test]
fn one_that_thinks_keeps_the_place_until_its_time_or_that_of_a_waiter_is_over() {
    let q = WriterQueue::default();
    let patience = |is_last| Patience { all: 5 * GRACE, kept: None, is_last };
    let other = |n, claim, patience: Patience| {
        let q = &q;
        std::thread::scope(|s| s.spawn(move || q.acquire(ConnectionId(n), claim, patience)).join().unwrap())
    };
    assert!(q.acquire(ConnectionId(1), TurnClaim::Thinks(LONG), LONG));
    assert!(q.is_thinking() && !q.is_taken());
    assert!(!other(2, TurnClaim::Firm, patience(false)) && !other(2, TurnClaim::Thinks(LONG), patience(false)));
    let kept = Some(HoldLimits { held: LONG, inside: LONG });
    let probably = Patience { all: LONG, kept, is_last: false };
    assert!(!other(2, TurnClaim::Tentative(GRACE), probably), "what may only read does not wait for it");
    assert!(q.acquire(ConnectionId(1), TurnClaim::Firm, Duration::ZERO), "nothing has taken it");
    assert!(!other(2, TurnClaim::Firm, patience(true)) && q.holds(ConnectionId(1)));
    q.release(ConnectionId(1));
    assert!(q.acquire(ConnectionId(1), TurnClaim::Thinks(LONG), LONG));
    assert!(other(2, TurnClaim::Firm, patience(true)) && q.holds(ConnectionId(2)));
    q.release(ConnectionId(2));
    assert!(q.acquire(ConnectionId(1), TurnClaim::Thinks(2 * GRACE), LONG));
    assert!(other(2, TurnClaim::Firm, Patience { all: LONG, ..patience(false) }) && q.holds(ConnectionId(2)));
}

#[test]
fn a_holder_that_only_keeps_the_place_is_not_waited_for() {
    let q = WriterQueue::default();
    let patience = Patience { all: LONG, kept: Some(HoldLimits { held: LONG, inside: LONG }), is_last: false };
    assert!(q.acquire(ConnectionId(1), TurnClaim::Firm, LONG));
    std::thread::scope(|s| {
        s.spawn(|| assert!(!q.acquire(ConnectionId(2), TurnClaim::Firm, patience), "this thread is idle"));
    });
    std::thread::scope(|s| {
        let patience =
            Patience { all: LONG, kept: Some(HoldLimits { held: Duration::ZERO, inside: LONG }), is_last: false };
        let q = &q;
        s.spawn(move || assert!(!q.acquire(ConnectionId(2), TurnClaim::Firm, patience)));
    });
}

#[test]
fn a_ticket_keeps_the_turn_and_the_place_waits_for_no_absent_thread() {
    let q = WriterQueue::default();
    let none = Patience { all: LONG, kept: Some(HoldLimits { held: Duration::ZERO, inside: LONG }), is_last: false };
    let order = std::sync::Mutex::new(Vec::new());
    let mut ticket = None;
    assert!(q.acquire(ConnectionId(1), TurnClaim::Firm, LONG));
    std::thread::scope(|s| {
        let (q, order) = (&q, &order);
        let wait = |n: u64, mut ticket: Option<_>| {
            assert!(q.acquire_with(ConnectionId(n), TurnClaim::Firm, LONG, &mut ticket));
            order.lock().unwrap().push(n);
            q.release(ConnectionId(n));
        };
        // A thread does not wait for itself, but keeps its turn.
        ticket = s
            .spawn(move || {
                let mut ticket = None;
                assert!(!q.acquire_with(ConnectionId(2), TurnClaim::Firm, none, &mut ticket));
                ticket
            })
            .join()
            .unwrap();
        assert!(ticket.is_some());
        s.spawn(move || wait(3, None));
        while !q.has_waiters(1) {
            std::thread::yield_now();
        }
        s.spawn(move || wait(2, ticket));
        while !q.has_waiters(2) {
            std::thread::yield_now();
        }
        q.release(ConnectionId(1));
    });
    assert_eq!(*order.lock().unwrap(), [2, 3]);
    assert!(q.acquire(ConnectionId(4), TurnClaim::Firm, Duration::ZERO));
}

fn beside_one_that_waits<T>(q: &WriterQueue, f: impl FnOnce() -> T) -> T {
    assert!(q.acquire(ConnectionId(1), TurnClaim::Firm, LONG));
    std::thread::scope(|s| {
        s.spawn(|| {
            assert!(q.acquire(ConnectionId(2), TurnClaim::Firm, LONG));
            q.release(ConnectionId(2));
        });
        while !q.has_waiters(1) {
            std::hint::spin_loop();
        }
        f()
    })
}

#[test]
fn a_running_thread_may_have_the_place_before_a_sleeping_one() {
    let q = WriterQueue::default();
    let faster = || {
        beside_one_that_waits(&q, || {
            q.release(ConnectionId(1));
            let taken = q.acquire(ConnectionId(1), TurnClaim::Firm, Duration::ZERO);
            q.release(ConnectionId(1));
            taken
        })
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !faster() {
        assert!(Instant::now() < deadline, "the one that waits has it each time");
    }
}

#[test]
fn the_place_is_kept_for_one_that_comes_again_soon() {
    let q = WriterQueue::default();
    let again = || {
        beside_one_that_waits(&q, || {
            q.release_for(ConnectionId(1), true);
            std::thread::sleep(SOON / 4);
            let again = q.acquire(ConnectionId(1), TurnClaim::Firm, Duration::ZERO);
            q.release(ConnectionId(1));
            again
        })
    };
    assert!((0..1000).any(|_| again()));
}

#[test]
fn a_place_that_is_kept_for_one_that_does_not_come_goes_to_the_next() {
    let q = WriterQueue::default();
    for _ in 0..50 {
        let begun = Instant::now();
        beside_one_that_waits(&q, || {
            q.release_for(ConnectionId(1), true);
            std::thread::scope(|s| {
                s.spawn(|| {
                    assert!(q.acquire(ConnectionId(3), TurnClaim::Firm, LONG));
                    q.release_for(ConnectionId(3), true);
                });
            });
        });
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody wakes up");
    }
}

#[test]
fn one_that_comes_again_and_again_keeps_no_waiter_for_long() {
    let q = WriterQueue::default();
    for _ in 0..50 {
        beside_one_that_waits(&q, || {
            let begun = Instant::now();
            while q.has_waiters(1) {
                assert!(begun.elapsed() < Duration::from_secs(10), "it starves");
                q.release_for(ConnectionId(1), true);
                if !q.acquire(ConnectionId(1), TurnClaim::Firm, Duration::ZERO) {
                    break;
                }
            }
            q.release(ConnectionId(1));
        });
    }
}

#[test]
fn a_waiter_has_the_place_before_long_though_others_come() {
    let q = WriterQueue::default();
    for _ in 0..50 {
        beside_one_that_waits(&q, || {
            let begun = Instant::now();
            while q.has_waiters(1) {
                assert!(begun.elapsed() < Duration::from_secs(10), "it starves");
                q.release(ConnectionId(1));
                if !q.acquire(ConnectionId(1), TurnClaim::Firm, Duration::ZERO) {
                    break;
                }
            }
            q.release(ConnectionId(1));
        });
    }
}

#[test]
fn each_waiter_gets_a_turn_and_none_two_at_once() {
    let q = WriterQueue::default();
    let inside = AtomicU64::new(0);
    std::thread::scope(|s| {
        for t in 0..8 {
            let (q, inside) = (&q, &inside);
            s.spawn(move || {
                for _ in 0..200 {
                    assert!(q.acquire(
                        ConnectionId(t),
                        if t % 2 == 0 { TurnClaim::Tentative(GRACE) } else { TurnClaim::Firm },
                        LONG
                    ));
                    if q.acquire(ConnectionId(t), TurnClaim::Firm, LONG) {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    }
                    q.release(ConnectionId(t));
                }
            });
        }
    });
    assert!(!q.is_taken());
}
