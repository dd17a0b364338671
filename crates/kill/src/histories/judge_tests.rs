//! The judge is judged: made-up histories with each anomaly are found under its name, and right
//! ones pass. Short ones get the same verdict as from a search through all orders.

use fastrand::Rng;
use proptest::prelude::*;

use super::judge::{List, Outcome, Step, Transaction, Value, Violation, judge};

fn list(file: u8, key: u64) -> List {
    List { file, key }
}

fn append(key: u64, value: Value) -> Step {
    Step::Append(list(0, key), value)
}

fn read(key: u64, values: &[Value]) -> Step {
    Step::Read(list(0, key), values.to_vec())
}

/// A committed transaction.
fn ok(invoked: u64, completed: u64, steps: &[Step]) -> Transaction {
    Transaction { invoked, completed, outcome: Outcome::Ok, holds_all: true, steps: steps.to_vec() }
}

fn found(history: &[Transaction]) -> Violation {
    judge(history).expect_err("a violation")
}

#[track_caller]
fn is_found(name: &str, transactions: &[usize], history: &[Transaction]) {
    let found = found(history);
    assert_eq!(found.name, name, "{found:?}");
    let mut numbers = found.transactions.clone();
    numbers.sort_unstable();
    assert_eq!(numbers, transactions, "{found:?}");
}

#[test]
fn write_cycles_are_found() {
    let both = |first, second| [append(1, first), append(2, second)];
    let history =
        [ok(0, 9, &both(11, 12)), ok(0, 9, &both(21, 22)), ok(10, 11, &[read(1, &[11, 21]), read(2, &[22, 12])])];
    is_found("write cycle (G0)", &[0, 1], &history);
}

#[test]
fn reads_of_rolled_back_rows_are_found() {
    let mut history = [ok(0, 1, &[append(1, 11)]), ok(0, 9, &[read(1, &[11])])];
    history[0].outcome = Outcome::Failed;
    is_found("aborted read (G1a)", &[0, 1], &history);
}

#[test]
fn reads_of_half_a_transaction_on_one_list_are_found() {
    let history =
        [ok(0, 9, &[append(1, 11), append(1, 12)]), ok(0, 9, &[read(1, &[11])]), ok(10, 11, &[read(1, &[11, 12])])];
    is_found("intermediate read (G1b)", &[0, 1], &history);
}

#[test]
fn circular_information_flow_is_found() {
    let history = [ok(0, 9, &[append(1, 11), read(2, &[22])]), ok(0, 9, &[append(2, 22), read(1, &[11])])];
    is_found("circular information flow (G1c)", &[0, 1], &history);
}

#[test]
fn lost_updates_are_found() {
    let history = [
        ok(0, 9, &[read(1, &[]), append(1, 11)]),
        ok(0, 9, &[read(1, &[]), append(1, 21)]),
        ok(10, 11, &[read(1, &[11, 21])]),
    ];
    is_found("lost update (G-single)", &[0, 1], &history);
}

#[test]
fn write_skew_is_found() {
    let history = [ok(0, 9, &[read(1, &[]), append(2, 12)]), ok(0, 9, &[read(2, &[]), append(1, 21)])];
    is_found("write skew (G2)", &[0, 1], &history);
}

#[test]
fn stale_reads_are_found() {
    let history = [ok(0, 1, &[append(1, 11)]), ok(2, 3, &[read(1, &[])]), ok(4, 5, &[read(1, &[11])])];
    is_found("stale read (G-single-realtime)", &[0, 1], &history);
    // The same at one moment is none.
    let mut history = history;
    history[1].invoked = 1;
    judge(&history).expect("at one moment they may have any order");
}

#[test]
fn a_state_that_was_seen_and_is_stale_elsewhere_is_found() {
    let history = [ok(0, 9, &[append(1, 11)]), ok(1, 2, &[read(1, &[11])]), ok(3, 4, &[read(1, &[])])];
    is_found("seen, then stale (G-single-realtime)", &[0, 1, 2], &history);
}

#[test]
fn longer_cycles_through_real_time_are_found() {
    // T1 read T0's append and ended before T2 began. T2 did not read T3's append to list 2. In list
    // 5 T3 appended before T0.
    let history = [
        ok(0, 90, &[append(1, 1), append(5, 50)]),
        ok(5, 20, &[read(1, &[1])]),
        ok(21, 60, &[read(2, &[])]),
        ok(0, 70, &[append(2, 2), append(5, 51)]),
        ok(100, 101, &[read(1, &[1]), read(2, &[2]), read(5, &[51, 50])]),
    ];
    is_found("real-time violation (G-single-realtime)", &[0, 1, 2, 3], &history);
    let mut history = history;
    history[2].invoked = 20;
    judge(&history).expect("T2 began while T1 was not over");
}

#[test]
fn reads_of_the_future_are_found() {
    let history = [ok(0, 20, &[read(4, &[4])]), ok(21, 60, &[append(4, 4)])];
    is_found("read of the future (G1c-realtime)", &[0, 1], &history);
}

#[test]
fn appends_against_real_time_are_found() {
    let history = [ok(0, 1, &[append(1, 11)]), ok(2, 3, &[append(1, 21)]), ok(4, 5, &[read(1, &[21, 11])])];
    is_found("appends against real time (G0-realtime)", &[0, 1], &history);
}

#[test]
fn transactions_seen_in_part_are_found() {
    let writes = ok(0, 9, &[append(1, 11), append(2, 12)]);
    let end = ok(10, 11, &[read(1, &[11]), read(2, &[12])]);
    let history = [writes.clone(), ok(0, 9, &[read(1, &[11]), read(2, &[])]), end.clone()];
    is_found("transaction seen in part (G-single)", &[0, 1], &history);
    // Killed in the middle, and half of it is there.
    let killed = Transaction { outcome: Outcome::Unknown, completed: u64::MAX, ..writes };
    let history = [killed.clone(), ok(10, 11, &[read(1, &[11])]), ok(12, 13, &[read(1, &[11]), read(2, &[])])];
    is_found("transaction in part", &[0, 1, 2], &history);
    // All of it or nothing is right.
    judge(&[killed.clone(), end]).expect("it committed");
    judge(&[killed, ok(10, 11, &[read(1, &[]), read(2, &[])])]).expect("it did not commit");
}

#[test]
fn several_files_are_one_state_for_their_holder() {
    let on = |file, key, value| Step::Append(list(file, key), value);
    let sees = |file, key, values: &[Value]| Step::Read(list(file, key), values.to_vec());
    let writes = ok(0, 9, &[on(0, 1, 11), on(1, 2, 12)]);
    let mut reads = ok(0, 9, &[sees(0, 1, &[11]), sees(1, 2, &[])]);
    let end = ok(10, 11, &[sees(0, 1, &[11]), sees(1, 2, &[12])]);
    is_found("transaction seen in part (G-single)", &[0, 1], &[writes.clone(), reads.clone(), end.clone()]);
    reads.holds_all = false;
    judge(&[writes.clone(), reads.clone(), end]).expect("a snapshot of each file");
    // Afterwards each has all of it, also for those.
    reads.invoked = 20;
    reads.completed = 21;
    is_found("acknowledged append missing", &[0, 1], &[writes, reads]);
}

#[test]
fn lost_and_repeated_and_made_up_appends_are_found() {
    let write = ok(0, 1, &[append(1, 11)]);
    is_found("acknowledged append missing", &[0, 1], &[write.clone(), ok(2, 3, &[read(1, &[])])]);
    is_found("duplicate", &[0, 1], &[write.clone(), ok(2, 3, &[read(1, &[11, 11])])]);
    is_found("value that nobody appended", &[1], &[write.clone(), ok(2, 3, &[read(1, &[11, 12])])]);
    is_found("value appended twice", &[0, 1], &[write.clone(), write.clone()]);
    let other = ok(0, 1, &[append(1, 21)]);
    let reads = [ok(2, 3, &[read(1, &[11, 21])]), ok(2, 3, &[read(1, &[21])])];
    let [first, second] = reads;
    is_found("lists that are not prefixes of each other", &[2, 3], &[write, other, first, second]);
}

#[test]
fn own_appends_are_read() {
    let history = [ok(0, 1, &[append(1, 11), read(1, &[])]), ok(2, 3, &[read(1, &[11])])];
    is_found("own append not read", &[0], &history);
    judge(&[ok(0, 1, &[append(1, 11), read(1, &[11]), append(1, 12), read(1, &[11, 12])])]).expect("it reads its own");
}

/// Transactions of clients one after the other, each with its effect at one moment between its
/// beginning and its end.
fn valid(seed: u64, transactions: u64, clients: usize) -> Vec<Transaction> {
    let mut rng = Rng::with_seed(seed);
    let mut lists: Vec<Vec<Value>> = vec![Vec::new(); 6];
    let mut free = vec![0u64; clients];
    let mut history = Vec::new();
    for number in 0..transactions {
        let effect = number * 100 + 100;
        let client = rng.usize(0..clients);
        // Not before the client's last one ended, which may be long after its effect.
        let Some(earliest) = free.get(client).copied().filter(|free| *free < effect) else { continue };
        let outcome = [Outcome::Ok, Outcome::Ok, Outcome::Ok, Outcome::Failed, Outcome::Unknown][rng.usize(0..5)];
        let takes_effect = outcome == Outcome::Ok || outcome == Outcome::Unknown && rng.bool();
        let mut after = lists.clone();
        let steps = (0..rng.u64(1..=8)).map(|step| {
            let at = rng.usize(0..lists.len());
            let list = list((at % 2) as u8, at as u64);
            if rng.bool() {
                return Step::Read(list, after[at].clone());
            }
            after[at].push(number << 8 | step);
            Step::Append(list, number << 8 | step)
        });
        let steps = steps.collect();
        let completed = effect + rng.u64(1..2000);
        free[client] = completed;
        let completed = if outcome == Outcome::Unknown { u64::MAX } else { completed };
        history.push(Transaction {
            invoked: rng.u64(earliest..effect),
            completed,
            outcome,
            holds_all: rng.bool(),
            steps,
        });
        if takes_effect {
            lists = after;
        }
    }
    let end = transactions * 100 + 10_000;
    let all = lists.iter().enumerate().map(|(at, values)| Step::Read(list((at % 2) as u8, at as u64), values.clone()));
    history.push(ok(end, end + 1, &all.collect::<Vec<_>>()));
    history
}

#[test]
fn a_long_history_of_many_clients_passes() {
    let history = valid(7, 20_000, 24);
    assert!(history.len() > 10_000, "{}", history.len());
    let proof = judge(&history).expect("right");
    assert!(proof.unknown_committed > 500 && proof.edges > 20_000, "{proof:?}");
}

/// A few transactions that read old states at random, on one file: some histories are right, some
/// are not.
fn doubtful(seed: u64) -> Vec<Transaction> {
    let mut rng = Rng::with_seed(seed);
    let mut orders: Vec<Vec<Value>> = vec![Vec::new(); 3];
    let count = rng.u64(2..=6);
    let mut history = Vec::new();
    for number in 0..count {
        let invoked = number * 10 + rng.u64(0..10);
        let staleness = if rng.bool() { 0 } else { 2 };
        let mut own: Vec<Vec<Value>> = vec![Vec::new(); 3];
        let cut: Vec<usize> =
            orders.iter().map(|order| order.len() - rng.usize(0..=staleness).min(order.len())).collect();
        let steps = (0..rng.u64(1..=3)).map(|step| {
            let key = rng.usize(0..3);
            if rng.bool() {
                // After its own append a transaction reads the newest list.
                let seen = if own[key].is_empty() { cut[key] } else { orders[key].len() - own[key].len() };
                return read(key as u64, &[&orders[key][..seen], &own[key][..]].concat());
            }
            let value = number << 8 | step;
            orders[key].push(value);
            own[key].push(value);
            append(key as u64, value)
        });
        let steps: Vec<Step> = steps.collect();
        let unknown = rng.u32(0..6) == 0;
        let (completed, outcome) = match unknown {
            true => (u64::MAX, Outcome::Unknown),
            false => (invoked + rng.u64(1..25), Outcome::Ok),
        };
        history.push(Transaction { invoked, completed, outcome, holds_all: true, steps });
    }
    let all: Vec<Step> = (0..3).map(|key| read(key as u64, &orders[key])).collect();
    history.push(ok(1000, 1001, &all));
    history
}

/// Whether some order explains it, by trying all.
fn some_order(history: &[Transaction], done: &mut Vec<usize>, lists: &[Vec<Value>]) -> bool {
    let is_left = |t: &usize| !done.contains(t);
    let left: Vec<usize> = (0..history.len()).filter(is_left).collect();
    // One whose end is unknown may not have happened.
    if left.iter().all(|t| history[*t].outcome == Outcome::Unknown) {
        return true;
    }
    left.iter().any(|&t| {
        if left.iter().any(|&other| history[other].completed < history[t].invoked) {
            return false;
        }
        let mut lists = lists.to_vec();
        let is_right = history[t].steps.iter().all(|step| match step {
            Step::Append(list, value) => {
                lists[list.key as usize].push(*value);
                true
            }
            Step::Read(list, values) => history[t].outcome == Outcome::Unknown || lists[list.key as usize] == *values,
        });
        done.push(t);
        let explains = is_right && some_order(history, done, &lists);
        done.pop();
        explains
    })
}

#[test]
fn both_verdicts_occur_among_short_histories() {
    let right =
        (0..1000).filter(|seed| some_order(&doubtful(*seed), &mut Vec::new(), &[vec![], vec![], vec![]])).count();
    assert!((100..900).contains(&right), "{right} of 1000 are right");
}

proptest! {
    #[test]
    fn valid_histories_pass(seed: u64, transactions in 1u64..300, clients in 1usize..20) {
        let judged = judge(&valid(seed, transactions, clients));
        prop_assert!(judged.is_ok(), "{:?}", judged);
    }

    #[test]
    fn short_histories_get_the_verdict_of_a_search_through_all_orders(seed: u64) {
        let history = doubtful(seed);
        let judged = judge(&history);
        let explained = some_order(&history, &mut Vec::new(), &[vec![], vec![], vec![]]);
        prop_assert_eq!(judged.is_ok(), explained, "{:?}: {:?}", judged, history);
    }
}
