//! The concurrent parts under a model checker: the same sources, compiled against locks whose
//! interleavings it chooses. It also finds deadlocks and lost wake-ups.

#[path = "../src/log/frontier.rs"]
mod frontier;
#[path = "../src/log/group.rs"]
#[allow(dead_code)]
mod group;
#[path = "../src/base/memory.rs"]
#[allow(dead_code)]
mod memory;
#[path = "../src/shared/pinning.rs"]
mod pinning;
#[path = "model/pins.rs"]
mod pins;
#[path = "../src/database/queue.rs"]
#[allow(dead_code)]
mod queue;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onewrite_core::inspect;

mod base {
    pub use onewrite_core::rules;

    pub mod clock {
        pub use std::time::Instant;
    }

    pub(crate) use crate::{error, memory, types};
}
mod disk {
    pub use onewrite_core::disk::*;

    pub(crate) use crate::sync;
}
mod log {
    pub(crate) use crate::frontier;
}
mod sqlite_format {
    pub use onewrite_core::inspect::home;
}
mod error {
    pub use onewrite_core::{Error, Result};

    pub trait IoContext<T> {
        fn context(self, what: impl FnOnce() -> String) -> Result<T>;
    }

    impl<T> IoContext<T> for std::io::Result<T> {
        fn context(self, what: impl FnOnce() -> String) -> Result<T> {
            self.map_err(|e| Error::io(what(), e))
        }
    }
}
mod types {
    pub use onewrite_core::inspect::Tid;
}

use disk::{DiskFile, FileId, LockKind};
use group::{Audience, Durability, Group};
use inspect::home::State;
use queue::{ConnectionId, HoldLimits, Patience, TurnClaim, WriterQueue};
use shuttle::rand::Rng;
use types::Tid;

mod sync {
    use std::ops::{Deref, DerefMut};
    use std::time::{Duration, Instant};

    use shuttle::rand::Rng;
    pub use shuttle::thread;

    pub type ThreadMark = thread::ThreadId;

    pub fn this_thread() -> ThreadMark {
        thread::current().id()
    }

    pub mod idle {
        use std::time::Duration;

        use shuttle::rand::Rng;

        #[derive(Clone, Copy)]
        pub struct Task;

        impl Task {
            pub fn current() -> Task {
                Task
            }
        }

        pub fn processor() -> Option<usize> {
            Some(shuttle::rand::thread_rng().gen_range(0..2))
        }

        pub struct Watch;

        impl Watch {
            pub fn new(_: Task) -> Watch {
                Watch
            }

            pub fn idle(&mut self, _: Duration) -> Duration {
                if shuttle::rand::thread_rng().r#gen() { Duration::MAX } else { Duration::ZERO }
            }
        }
    }

    pub struct Event(Mutex<bool>, Condvar);

    impl Event {
        pub fn new() -> Event {
            Event(Mutex::new(false), Condvar::new())
        }

        pub fn set(&self) {
            *self.0.lock() = true;
            self.1.notify_all();
        }

        pub fn is_set(&self) -> bool {
            *self.0.lock()
        }

        pub fn reset(&self) {
            *self.0.lock() = false;
        }

        pub fn spin(&self, _: Duration) -> bool {
            thread::yield_now();
            self.is_set()
        }

        pub fn wait(&self) {
            let mut set = self.0.lock();
            while !*set {
                self.1.wait(&mut set);
            }
        }

        pub fn nap(&self, _: Duration) -> bool {
            thread::yield_now();
            self.is_set()
        }

        pub fn wait_until(&self, _: Instant) -> bool {
            if shuttle::rand::thread_rng().gen_ratio(3, 4) {
                self.wait();
            }
            self.is_set()
        }
    }

    #[derive(Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);
    pub struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);
    #[derive(Default)]
    pub struct Condvar(shuttle::sync::Condvar);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    impl Condvar {
        pub fn new() -> Self {
            Condvar::default()
        }

        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().unwrap();
            guard.0 = Some(self.0.wait(inner).unwrap());
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

const RECORD: usize = 8;
const BLOCK: usize = 3 * RECORD;
const BESIDE: u64 = 1 << 10;
const LONG: Duration = Duration::from_secs(3600);

struct Media {
    bytes: sync::Mutex<(Vec<u8>, Vec<u8>)>,
    /// Until they fail, and whether one has.
    failing: sync::Mutex<(Option<u32>, bool)>,
}

impl Media {
    fn strike(&self) -> std::io::Result<()> {
        let mut failing = self.failing.lock();
        if failing.0 == Some(0) {
            failing.1 = true;
            return Err(std::io::Error::other("injected"));
        }
        failing.0 = failing.0.map(|left| left - 1);
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.failing.lock().1
    }

    /// A power cut leaves it, with all before it.
    fn durable(&self) -> u64 {
        prefix(&self.bytes.lock().1)
    }

    fn written(&self) -> u64 {
        prefix(&self.bytes.lock().0)
    }

    fn beside(&self) -> u8 {
        self.bytes.lock().1[BESIDE as usize]
    }
}

fn prefix(bytes: &[u8]) -> u64 {
    let words = bytes[..BESIDE as usize].chunks_exact(RECORD).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    (1..).zip(words).take_while(|(n, word)| n == word).count() as u64
}

impl DiskFile for Media {
    fn id(&self) -> std::io::Result<FileId> {
        Ok(FileId { dev: 0, ino: 0 })
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(2 * BESIDE)
    }

    fn read_once_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
        Ok(0)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.strike()?;
        self.bytes.lock().0[offset as usize..][..buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.write_at(buf, offset)?;
        sync::thread::yield_now();
        self.strike()?;
        self.bytes.lock().1[offset as usize..][..buf.len()].copy_from_slice(buf);
        Ok(())
    }

    fn sync(&self) -> std::io::Result<()> {
        let now = self.bytes.lock().0.clone();
        sync::thread::yield_now();
        self.strike()?;
        self.bytes.lock().1 = now;
        Ok(())
    }

    fn set_len(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn reserve(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn try_lock(&self, _: u64, _: u64, _: LockKind) -> std::io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self, _: u64, _: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn atomic_unit_bytes(&self) -> u32 {
        512
    }
}

struct Model {
    inner: sync::Mutex<Inner>,
    writer: sync::Mutex<u64>,
    queue: WriterQueue,
    group: Group,
    media: Arc<Media>,
}

#[derive(Default)]
struct Inner {
    latest: u64,
    published: u64,
    flushed: Vec<u64>,
    poisoned: bool,
}

impl Audience for Model {
    fn show(&self, state: Arc<State>) {
        let mut inner = self.inner.lock();
        assert!(!inner.poisoned, "nothing hidden becomes visible after a failure");
        assert!(inner.latest < state.tid.0 && state.tid.0 <= inner.published);
        inner.latest = state.tid.0;
    }

    fn is_to_publish(&self) -> bool {
        !self.queue.is_idle()
    }

    fn poison(&self, error: error::Error) -> error::Error {
        self.inner.lock().poisoned = true;
        error
    }
}

impl Model {
    fn new(failing: Option<u32>) -> Arc<Model> {
        let zeros = vec![0; 2 * BESIDE as usize];
        let media = Arc::new(Media {
            bytes: sync::Mutex::new((zeros.clone(), zeros)),
            failing: sync::Mutex::new((failing, false)),
        });
        let group = Group::new(media.clone(), PathBuf::from("log"), BLOCK, 0, Tid(0));
        let (inner, writer) = (sync::Mutex::default(), sync::Mutex::default());
        Arc::new(Model { inner, writer, queue: WriterQueue::default(), group, media })
    }

    fn commit(&self, me: ConnectionId) -> bool {
        let mut rng = shuttle::rand::thread_rng();
        if rng.r#gen() {
            self.queue.acquire(me, TurnClaim::Tentative(Duration::ZERO), LONG);
        }
        // As under a busy handler, whose sleep may get the place tentatively.
        let mut ticket = None;
        let kept = Patience {
            all: LONG,
            kept: Some(HoldLimits { held: Duration::ZERO, inside: Duration::ZERO }),
            is_last: false,
        };
        for _ in 0..rng.gen_range(0..3) {
            if self.queue.acquire_with(me, TurnClaim::Firm, kept, &mut ticket) {
                break;
            }
            if rng.r#gen() {
                self.queue.acquire_with(me, TurnClaim::Tentative(Duration::ZERO), LONG, &mut ticket);
            }
        }
        assert!(self.queue.acquire_with(me, TurnClaim::Firm, LONG, &mut ticket), "nobody is turned away");
        let durability = if rng.gen_ratio(2, 3) { Durability::Flushed } else { Durability::Written };
        let (tid, beside) = {
            let mut writer = self.writer.lock();
            let beside = rng.gen_ratio(1, 4).then_some(*writer as u8 + 1);
            if let Some(byte) = beside {
                if self.media.write_at(&[byte], BESIDE).is_err() {
                    self.queue.release(me);
                    return false;
                }
                self.group.written_beside();
            }
            if rng.gen_ratio(1, 4) && self.group.hand_over(self).is_err() {
                self.queue.release(me);
                return false;
            }
            let mut inner = self.inner.lock();
            if inner.poisoned {
                self.queue.release(me);
                return false;
            }
            *writer += 1;
            assert_eq!(inner.published + 1, *writer);
            inner.published = *writer;
            if durability == Durability::Flushed {
                inner.flushed.push(*writer);
            }
            self.group.push(&writer.to_le_bytes(), false, &Arc::new(State::empty(Tid(*writer))), durability);
            (*writer, beside)
        };
        self.queue.release_for(me, rng.r#gen());
        let waited = if rng.r#gen() {
            self.group.wait(Tid(tid), durability, self)
        } else {
            self.group.wait_for_others(Tid(tid), durability, Duration::ZERO, self)
        };
        match waited {
            Ok(()) => {
                assert!(self.inner.lock().latest >= tid, "a connection sees its own commit");
                assert!(self.media.written() >= tid);
                if durability == Durability::Flushed {
                    assert!(self.media.durable() >= tid, "acknowledged and not durable (I1)");
                    assert!(beside.is_none_or(|byte| self.media.beside() >= byte), "its streamed images are not");
                }
                true
            }
            Err(_) => {
                assert!(self.media.has_failed());
                false
            }
        }
    }

    /// A seen state cannot be taken back.
    fn read(&self) -> u64 {
        let inner = self.inner.lock();
        let wanted = inner.flushed.iter().copied().filter(|tid| *tid <= inner.latest).max().unwrap_or(0);
        assert!(self.media.durable() >= wanted, "seen and not durable (I4)");
        inner.latest
    }
}

fn run(failing: bool) {
    let failing = failing.then(|| shuttle::rand::thread_rng().gen_range(0..6));
    let model = Model::new(failing);
    let mut threads: Vec<_> = (0..3)
        .map(|n| {
            let model = model.clone();
            sync::thread::spawn(move || (0..3).all(|_| model.commit(ConnectionId(n))))
        })
        .collect();
    threads.push(sync::thread::spawn({
        let model = model.clone();
        move || {
            let seen: Vec<u64> = (0..4).map(|_| model.read()).collect();
            assert!(seen.is_sorted(), "readers never go back");
            true
        }
    }));
    let fine = threads.into_iter().map(|t| t.join().unwrap()).fold(true, |a, b| a & b);
    assert!(!model.queue.is_taken());
    assert_eq!(fine, !model.media.has_failed());
    model.read();
    if fine {
        model.group.flush(&*model).unwrap();
        assert_eq!((model.media.durable(), model.inner.lock().latest), (9, 9));
    } else {
        assert!(model.group.flush(&*model).is_err() || model.group.is_quiet());
    }
}

#[test]
fn commits_are_durable_when_they_say_so_and_seen_when_they_are_durable() {
    shuttle::check_random(|| run(false), 1500);
    shuttle::check_pct(|| run(false), 1500, 3);
}

#[test]
fn after_a_failure_no_commit_is_acknowledged_or_shown() {
    shuttle::check_random(|| run(true), 1500);
    shuttle::check_pct(|| run(true), 1500, 3);
}
