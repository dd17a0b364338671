//! The newest known state of a database and its pages, shared by the connections of a process.

use crate::hydrate::Local;
use crate::settings::Settings;
use crate::state::{FileIndex, Images, Place, ReplicaState, WHOLE_BYTES};
use anyhow::{Context, Result, bail, ensure};
use lru::LruCache;
use onewrite_core::disk::{Mutex, RwLock};
use onewrite_replicate::fetch::Damaged;
use onewrite_replicate::lookout::{AWAY_MS, Lookout, Seen};
use onewrite_replicate::ltx::{Frame, page_of_frame};
use onewrite_replicate::plan::{Gap, Target};
use onewrite_replicate::report::now_ms;
use onewrite_replicate::restore;
use onewrite_replicate::store::{Entry, Name, Store, open};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

/// A request without an answer is sent again well before this: a reader waits for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// While the store does not answer, looks have growing pauses, at most this one.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Batches that one look takes one by one; behind more of them, a listing costs less.
const BATCHES_MAX: usize = 8;
/// Files of a state. With more, a listing finds the merged ones.
const FILES_MAX: usize = 200;
/// Most bytes of one request for pages.
const READ_BYTES: u64 = 1 << 20;

/// The state of a transaction is in the store no more: it has been merged into a newer one.
#[derive(Debug, thiserror::Error)]
#[error(
    "transaction {0:x} has been merged into newer ones while it was being read: begin the transaction again, or let \
     the store keep batches for longer"
)]
pub struct Merged(pub u64);

/// A database in a store.
pub struct Replica {
    /// Its place.
    pub url: String,
    store: Box<dyn Store>,
    newest: RwLock<Newest>,
    /// Held by the connection that looks; others go on with the state that is known.
    looker: Mutex<Looker>,
    pages: Mutex<PageCache>,
    /// The copy on this machine, once it is whole.
    pub local: Mutex<Option<Arc<Local>>>,
    /// Such a copy is being made.
    pub copies: AtomicBool,
}

/// Images by [`FileIndex::id`] and page.
type PageCache = LruCache<(u64, u32), Arc<[u8]>>;

/// The newest known state, and when it was known to be the newest, in milliseconds since 1970.
struct Newest {
    state: Arc<ReplicaState>,
    known_ms: i64,
}

struct Looker {
    lookout: Lookout,
    /// When a look ended last, and how many have failed since one succeeded.
    looked: Instant,
    failures: u32,
}

/// Databases that are open in this process, by place and settings.
static OPEN: LazyLock<Mutex<HashMap<Settings, Weak<Replica>>>> = LazyLock::new(Mutex::default);

impl Replica {
    /// The database of these settings; connections with the same ones share it.
    pub fn open(settings: &Settings) -> Result<Arc<Replica>> {
        let known = || OPEN.lock().get(settings).and_then(Weak::upgrade);
        if let Some(replica) = known() {
            return Ok(replica);
        }
        // A store that is slow holds up nothing but its own database.
        let mut replica = Arc::new(Replica::new(settings)?);
        {
            let mut open = OPEN.lock();
            open.retain(|_, replica| replica.strong_count() > 0);
            match open.get(settings).and_then(Weak::upgrade) {
                Some(first) => replica = first,
                None => drop(open.insert(settings.clone(), Arc::downgrade(&replica))),
            }
        }
        if settings.hydrate && replica.local.lock().is_none() {
            crate::hydrate::start(&replica)?;
        }
        Ok(replica)
    }

    fn new(settings: &Settings) -> Result<Replica> {
        let mut store = open(&settings.url)?;
        store.hurry(PATIENCE);
        let known_ms = now_ms();
        let (mut lookout, mut loaded) = (Lookout::default(), Vec::new());
        let state = state_of(&*store, Target::Newest, None, &mut |file, images| loaded.push((file, images)))
            .with_context(|| format!("cannot read {}", settings.url))?;
        lookout.listed(state.txid());
        let pages = usize::try_from(settings.cache_bytes.div_euclid(state.page_bytes().max(1).into()))?;
        let pages = LruCache::new(NonZeroUsize::new(pages).unwrap_or(NonZeroUsize::MIN));
        let state = Arc::new(state);
        let replica = Replica {
            url: settings.url.clone(),
            store,
            newest: RwLock::new(Newest { state, known_ms }),
            looker: Mutex::new(Looker { lookout, looked: Instant::now(), failures: 0 }),
            pages: Mutex::new(pages),
            local: Mutex::new(None),
            copies: AtomicBool::new(false),
        };
        loaded.into_iter().for_each(|(file, images)| replica.keep(file, images));
        Ok(replica)
    }

    /// The newest state, looked for if that was longer ago than `poll` and no other connection is
    /// about it. The error is that of the look: the state is then the newest known one.
    pub fn newest(self: &Arc<Self>, poll: Duration) -> (Arc<ReplicaState>, Result<()>) {
        let mut done = Ok(());
        if let Some(mut looker) = self.looker.try_lock() {
            let pause = poll.saturating_mul(1 << looker.failures.min(16)).min(PAUSE_MAX.max(poll));
            if looker.looked.elapsed() >= pause {
                done = self.look(&mut looker);
            }
        }
        let state = self.known();
        if self.local.lock().as_ref().is_some_and(|local| local.is_left_behind(&state)) {
            done = done.and(crate::hydrate::start(self));
        }
        (state, done)
    }

    /// The newest known state.
    pub fn known(&self) -> Arc<ReplicaState> {
        self.newest.read().state.clone()
    }

    /// How long ago the newest known state was certainly the newest.
    pub fn lag(&self) -> Duration {
        let ms = now_ms().saturating_sub(self.newest.read().known_ms);
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    fn look(&self, looker: &mut Looker) -> Result<()> {
        let known_ms = now_ms();
        let looked = self.find_newer(&mut looker.lookout);
        looker.looked = Instant::now();
        if looked.is_ok() {
            looker.failures = 0;
            self.newest.write().known_ms = known_ms;
        } else {
            looker.failures = looker.failures.saturating_add(1);
            looker.lookout.forget();
        }
        looked.with_context(|| format!("cannot look for newer transactions in {}", self.url))
    }

    fn find_newer(&self, lookout: &mut Lookout) -> Result<()> {
        for _ in 0..BATCHES_MAX {
            let state = self.known();
            if state.files().len() >= FILES_MAX || is_old(&state) {
                break;
            }
            let name = match lookout.look(&*self.store, state.txid(), state.time_ms())? {
                Seen::Nothing => return Ok(()),
                Seen::Batch(name) => name,
                Seen::Unknown => break,
            };
            // A large one is not read whole; one that was removed, or has another page size, needs
            // a listing.
            let Ok(next) = self.verified(name).and_then(|file| state.with(file)) else { break };
            self.newest.write().state = Arc::new(next);
        }
        let known = self.known();
        let next = self.at(Target::Newest)?;
        lookout.listed(next.txid());
        let (was, is) = (known.txid(), next.txid());
        ensure!(is >= was, "it had transaction {was:x}, and its newest is {is:x}: was it emptied? Open it again");
        self.newest.write().state = next;
        Ok(())
    }

    /// Reads a small file whole, verifies it, and keeps its pages.
    fn verified(&self, name: Name) -> Result<FileIndex> {
        let bytes = self.store.read_part(name, 0, WHOLE_BYTES.saturating_add(1))?;
        let entry = Entry { name, time_ms: 0, bytes: bytes.len() as u64 };
        ensure!(entry.bytes <= WHOLE_BYTES, "{name} is large");
        let (file, images) = FileIndex::verify(&bytes, entry)?;
        self.keep(file.id, images);
        Ok(file)
    }

    fn keep(&self, file: u64, images: Images) {
        let mut pages = self.pages.lock();
        for (page, image) in images {
            pages.put((file, page), image);
        }
    }

    /// The state that `target` names.
    pub fn at(&self, target: Target) -> Result<Arc<ReplicaState>> {
        let keep = &mut |file, images| self.keep(file, images);
        Ok(Arc::new(state_of(&*self.store, target, Some(&self.known()), keep)?))
    }

    /// The image of a page of `state`, of which `read_ahead` more frames are read if it takes a
    /// request. `state` is replaced by itself if its files were merged.
    pub fn page(&self, state: &mut Arc<ReplicaState>, page: u32, read_ahead: usize) -> Result<Arc<[u8]>> {
        if let Some(image) = self.here(state, page)? {
            return Ok(image);
        }
        // A name may be another file's by now (see `Lookout`).
        if is_old(state) {
            *state = self.again(state)?;
        }
        match self.fetch(state, page, read_ahead) {
            Err(e) if e.is::<Damaged>() => {
                *state = self.again(state)?;
                self.fetch(state, page, read_ahead)
            }
            read => read,
        }
    }

    /// The image if no request is needed.
    fn here(&self, state: &ReplicaState, page: u32) -> Result<Option<Arc<[u8]>>> {
        let zeros = || Arc::from(vec![0; usize::try_from(state.page_bytes()).unwrap_or(0)]);
        let Place::Frame(file, _) = state.place(page) else { return Ok(Some(zeros())) };
        let local = self.local.lock().clone();
        if let Some(local) = local.filter(|local| local.has(state, file)) {
            return local.read(page).map(Some);
        }
        Ok(self.pages.lock().get(&(file.id, page)).cloned())
    }

    /// The same state by the files that make it now.
    fn again(&self, state: &ReplicaState) -> Result<Arc<ReplicaState>> {
        let again = self.at(Target::Txid(state.txid()));
        match again {
            Ok(again) => {
                let mut newest = self.newest.write();
                if newest.state.txid() == again.txid() {
                    newest.state = again.clone();
                }
                Ok(again)
            }
            Err(e) if e.is::<Gap>() => {
                self.looker.lock().lookout.forget();
                Err(Merged(state.txid()).into())
            }
            Err(e) => Err(e),
        }
    }

    /// Reads a page, and those that come with it, and keeps their images.
    fn fetch(&self, state: &ReplicaState, page: u32, read_ahead: usize) -> Result<Arc<[u8]>> {
        let Place::Frame(file, at) = state.place(page) else { bail!("page {page} has no place") };
        let images = if file.is_small() { self.whole(file)? } else { self.part(file, at, read_ahead)? };
        let wanted = images.iter().find(|(of, _)| *of == page).map(|(_, image)| image.clone());
        self.keep(file.id, images);
        wanted.context(Damaged(file.entry.name))
    }

    /// The pages of a small file, read and verified again.
    fn whole(&self, file: &FileIndex) -> Result<Images> {
        let name = file.entry.name;
        let (again, images) = FileIndex::verify(&self.read(name, 0, file.entry.bytes)?, file.entry)?;
        ensure!(again.header == file.header && again.frames == file.frames, Damaged(name));
        Ok(images)
    }

    /// A part of a file; [`Damaged`] if it is not there.
    fn read(&self, name: Name, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        match self.store.read_part(name, offset, bytes) {
            Ok(read) if read.len() as u64 == bytes => Ok(read),
            Ok(_) => Err(Damaged(name).into()),
            Err(e) if matches!(self.store.has(name), Ok(false)) => Err(e.context(Damaged(name))),
            Err(e) => Err(e).with_context(|| format!("cannot read pages of {}", self.url)),
        }
    }

    /// The page of frame `at` of a file, and of at most `read_ahead` frames behind it.
    fn part(&self, file: &FileIndex, at: usize, read_ahead: usize) -> Result<Images> {
        let name = file.entry.name;
        let first = file.frames.get(at).context("a frame is missing")?;
        let end = first.offset.saturating_add(READ_BYTES);
        let rest = file.frames.get(at..).unwrap_or_default();
        let ends = |frame: &Frame| frame.offset.saturating_add(frame.bytes);
        let count = rest.iter().take(read_ahead.saturating_add(1)).take_while(|frame| ends(frame) <= end).count();
        let frames = rest.get(..count.max(1)).unwrap_or_default();
        let bytes = frames.last().map_or(0, ends).saturating_sub(first.offset);
        let read = self.read(name, first.offset, bytes)?;
        let mut here = read.as_slice();
        let image = |frame: &Frame| {
            let split = usize::try_from(frame.bytes).ok().and_then(|bytes| here.split_at_checked(bytes));
            let (packed, behind) = split.context(Damaged(name))?;
            here = behind;
            let image =
                page_of_frame(&file.header, frame, packed).map_err(anyhow::Error::new).context(Damaged(name))?;
            Ok((frame.page, Arc::from(image)))
        };
        frames.iter().map(image).collect()
    }
}

/// Whether names may have become those of other files since the store was listed.
fn is_old(state: &ReplicaState) -> bool {
    !(0..AWAY_MS).contains(&now_ms().saturating_sub(state.listed_ms))
}

/// The state that `target` names. Takes from `known` the files that it has, and gives the pages of
/// others to `keep`.
fn state_of(
    store: &dyn Store,
    target: Target,
    known: Option<&ReplicaState>,
    keep: &mut dyn FnMut(u64, Images),
) -> Result<ReplicaState> {
    let listed_ms = now_ms();
    let (plan, _) = restore::planned(store, target)?;
    ReplicaState::load(store, &plan, known, listed_ms, keep)
}
