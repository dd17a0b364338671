//! The FUSE file system under the loop device: `disk` has the device's bytes, `position` the number
//! of events in the trace. Requests are recorded in the order in which they are read from the
//! kernel.

use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};
use parking_lot::{Condvar, Mutex};

use crate::image::Image;
use crate::profile::{Queue, Timing};
use crate::trace::{Event, Operation, Trace};

const REQUEST_BYTES_MAX: u32 = 1 << 20;
const DISK: INodeNo = INodeNo(2);
const POSITION: INodeNo = INodeNo(3);
const FOREVER: Duration = Duration::from_secs(1 << 30);

pub struct Shared {
    state: Mutex<State>,
    started: Instant,
    len_bytes: u64,
    keep_data: bool,
}

struct State {
    image: Image,
    trace: Trace,
    queue: Queue,
}

impl Shared {
    pub fn new(image: Image, timing: Option<Timing>, keep_data: bool) -> Shared {
        let len_bytes = image.len_bytes();
        let state = State { image, trace: Trace::default(), queue: Queue::with(timing) };
        Shared { state: Mutex::new(state), started: Instant::now(), len_bytes, keep_data }
    }

    pub fn position(&self) -> usize {
        self.state.lock().trace.events.len()
    }

    pub fn trace(&self) -> Trace {
        self.state.lock().trace.clone()
    }

    pub fn events(&self, positions: Range<usize>) -> Vec<Event> {
        let state = self.state.lock();
        let events = &state.trace.events;
        let end = positions.end.min(events.len());
        events[positions.start.min(end)..end].to_vec()
    }

    pub fn image(&self) -> Image {
        self.state.lock().image.clone()
    }

    pub fn replace(&self, image: Image) {
        let mut state = self.state.lock();
        state.image = image;
        state.trace = Trace::default();
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn attributes(&self, node: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match node {
            INodeNo::ROOT => (FileType::Directory, 0),
            DISK => (FileType::RegularFile, self.len_bytes),
            POSITION => (FileType::RegularFile, 0),
            _ => return None,
        };
        Some(FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

pub struct Server {
    shared: Arc<Shared>,
    later: Arc<Later>,
}

impl Server {
    /// Starts the thread that sends due answers. The caller is the session's thread, see
    /// [`crate::device`].
    pub fn new(shared: Arc<Shared>) -> io::Result<Server> {
        let later = Arc::new(Later::default());
        let (waiting, state) = (later.clone(), shared.clone());
        std::thread::Builder::new().name("device-answers".to_owned()).spawn(move || waiting.answer(&state))?;
        Ok(Server { shared, later })
    }

    fn reply(&self, due_ns: u64, answer: Answer) {
        if due_ns <= self.shared.now_ns() {
            answer.send(&self.shared, due_ns);
        } else {
            self.later.push(due_ns, answer);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.later.heap.lock().closed = true;
        self.later.changed.notify_one();
    }
}

enum Answer {
    Data(ReplyData, Vec<u8>),
    Written(ReplyWrite, u32),
    Zeroed(ReplyEmpty),
    Flushed { reply: ReplyEmpty, arrived_ns: u64 },
}

impl Answer {
    fn send(self, shared: &Shared, due_ns: u64) {
        match self {
            Answer::Data(reply, bytes) => reply.data(&bytes),
            Answer::Written(reply, len) => reply.written(len),
            Answer::Zeroed(reply) => reply.ok(),
            Answer::Flushed { reply, arrived_ns } => {
                let event = Event { arrived_ns, done_ns: due_ns, operation: Operation::Flush };
                shared.state.lock().trace.events.push(event);
                reply.ok();
            }
        }
    }
}

#[derive(Default)]
struct Later {
    heap: Mutex<Heap>,
    changed: Condvar,
}

#[derive(Default)]
struct Heap {
    waiting: BinaryHeap<Waiting>,
    order: u64,
    closed: bool,
}

struct Waiting {
    due_ns: u64,
    order: u64,
    answer: Answer,
}

impl Later {
    fn push(&self, due_ns: u64, answer: Answer) {
        let mut heap = self.heap.lock();
        let order = heap.order;
        heap.order += 1;
        heap.waiting.push(Waiting { due_ns, order, answer });
        self.changed.notify_one();
    }

    fn answer(&self, shared: &Shared) {
        // Without it, waits end up to 50 us late.
        let _ = nix::sys::prctl::set_timerslack(1);
        let mut heap = self.heap.lock();
        loop {
            let Some(due_ns) = heap.waiting.peek().map(|w| w.due_ns) else {
                if heap.closed {
                    return;
                }
                self.changed.wait(&mut heap);
                continue;
            };
            let now_ns = shared.now_ns();
            if due_ns > now_ns && !heap.closed {
                self.changed.wait_for(&mut heap, Duration::from_nanos(due_ns - now_ns));
                continue;
            }
            if let Some(next) = heap.waiting.pop() {
                parking_lot::MutexGuard::unlocked(&mut heap, || next.answer.send(shared, next.due_ns));
            }
        }
    }
}

/// Reversed: a `BinaryHeap` returns the greatest first.
impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> std::cmp::Ordering {
        (other.due_ns, other.order).cmp(&(self.due_ns, self.order))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without these, requests are only smaller or fewer at once.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_MAX_PAGES);
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = match name.to_str() {
            Some("disk") if parent == INodeNo::ROOT => DISK,
            Some("position") if parent == INodeNo::ROOT => POSITION,
            _ => return reply.error(Errno::ENOENT),
        };
        match self.shared.attributes(node) {
            Some(attributes) => reply.entry(&FOREVER, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.shared.attributes(node) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A disk keeps its size, and times and modes are not stored.
        match self.shared.attributes(node) {
            Some(attributes) if size.is_none_or(|size| size == attributes.size) => reply.attr(&FOREVER, &attributes),
            _ => reply.error(Errno::EPERM),
        }
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if node != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (DISK, FileType::RegularFile, "disk"),
            (POSITION, FileType::RegularFile, "position"),
        ];
        for (next, (node, kind, name)) in (1..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(node, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if node == POSITION {
            let text = format!("{}\n", self.shared.position());
            let rest = usize::try_from(offset).ok().and_then(|offset| text.as_bytes().get(offset..));
            return reply.data(rest.unwrap_or_default());
        }
        let now_ns = self.shared.now_ns();
        let len = u64::from(size).min(self.shared.len_bytes.saturating_sub(offset));
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let mut state = self.shared.state.lock();
        state.image.read(offset, &mut bytes);
        state.trace.reads += 1;
        state.trace.read_bytes += len;
        let due_ns = state.queue.read(now_ns, len);
        drop(state);
        self.reply(due_ns, Answer::Data(reply, bytes));
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (Ok(len), Some(end)) = (u32::try_from(data.len()), offset.checked_add(data.len() as u64)) else {
            return reply.error(Errno::EINVAL);
        };
        if node != DISK || end > self.shared.len_bytes {
            return reply.error(Errno::ENOSPC);
        }
        let arrived_ns = self.shared.now_ns();
        let kept = self.shared.keep_data.then(|| Arc::from(data));
        let mut state = self.shared.state.lock();
        state.image.write(offset, data);
        let done_ns = state.queue.write(arrived_ns, offset, u64::from(len));
        let operation = Operation::Write { offset, len: u64::from(len), data: kept };
        state.trace.events.push(Event { arrived_ns, done_ns, operation });
        drop(state);
        self.reply(done_ns, Answer::Written(reply, len));
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let zeroes = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        if node != DISK || !zeroes || offset.checked_add(length).is_none_or(|end| end > self.shared.len_bytes) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let arrived_ns = self.shared.now_ns();
        let mut state = self.shared.state.lock();
        state.image.zero(offset, length);
        let done_ns = state.queue.write(arrived_ns, offset, 0);
        let operation = Operation::Zero { offset, len: length };
        state.trace.events.push(Event { arrived_ns, done_ns, operation });
        drop(state);
        self.reply(done_ns, Answer::Zeroed(reply));
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if node != DISK {
            return reply.ok();
        }
        let arrived_ns = self.shared.now_ns();
        let done_ns = self.shared.state.lock().queue.flush(arrived_ns);
        self.reply(done_ns, Answer::Flushed { reply, arrived_ns });
    }

    // The kernel asks these of any file system, and logs missing ones.

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn access(&self, _: &Request, _: INodeNo, _: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: fuser::ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}
