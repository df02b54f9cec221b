//! Scenes: a few calls of three hosts that meet within milliseconds. Programs that choose their calls at random hardly
//! ever make them.
//!
//! Owns: the calls of each scene, when they begin, and what is lost meanwhile. A scene uses directories that nothing else
//! has used, after the programs have ended. Leaves to others: making and recording the calls (`program`).
//!
//! | scene | what it would show |
//! |---|---|
//! | crossing moves | a move that is answered although a move of another host, on which it depends, may be lost |
//! | changes behind a move | a change that is answered before an earlier one of its session is durable |
//! | directory emptied by another host | a change that is shown although it depends on another host's |
//! | renamed name removed | a name that the kernel shows after a rename, of which the mount does not know |
//! | late rename | attributes of a file that a rename has replaced, and of which the kernel knew nothing |
//! | same rename | a rename that a kernel reports as done because another host has done it |

use std::sync::Arc;
use std::time::Duration;

use nectary_volume::protocol::FileId;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::board::ROOT_ID;
use super::coverage::RequiredEvent;
use super::program::{CreateKind, NamesProgram};
use super::tree::{ROOT, Tag};
use super::world::{HOSTS, SETTLED, VolumeNamesWorld};
use crate::random::SimulationRandom;

/// All scenes.
const SCENES: [RequiredEvent; 6] = [
    RequiredEvent::CrossingMoves,
    RequiredEvent::ChangesBehindMove,
    RequiredEvent::DirectoryEmptied,
    RequiredEvent::RenamedNameRemoved,
    RequiredEvent::LateRename,
    RequiredEvent::SameRename,
];
/// The names of its first directories in the root.
const FIRST: u8 = 200;
const SECOND: u8 = 201;
/// The time after which a scene goes on without the end of a call. *Units*: milliseconds; a message takes one or more.
const WAIT_MS: (u64, u64) = (15, 45);
/// By how much a disk operation is slower while something is to be lost, so that appends take as long as a few calls.
/// *Units*: milliseconds.
const SLOW_MS: (u64, u64) = (30, 60);
/// The time for which the request of a late rename waits, and in which its kernel looks names up. *Units*: milliseconds.
const LATE_MS: (u64, u64) = (30, 90);
const LOOKED_UP: Duration = Duration::from_millis(8);
/// A change of another host waits for a name that a kernel was given, in a directory that its host has changed, for 600 ms
/// (`given` of the client): a time that is over just before, and the one for which the request of a rename of that name is
/// late. *Units*: milliseconds.
const NAME_ENDS: Duration = Duration::from_millis(585);
const NAME_LATE_MS: (u64, u64) = (596, 630);
/// The time between two renames that meet. *Units*: microseconds.
const MEETING_US: u64 = 4000;
/// The most calls that are repeated while another one is under way.
const REPEATED_MAX: u32 = 8;

/// A directory or a file: its tag and its identity.
type Node = (Tag, FileId);
/// The root.
const TOP: Node = (ROOT, ROOT_ID);

async fn make(program: &NamesProgram, directory: Node, name: u8, kind: CreateKind) -> Option<Node> {
    let (tag, id, _) = program.make_at((directory.0, name), directory.1, kind).await?;
    Some((tag, id))
}

async fn rename(program: Arc<NamesProgram>, (from, name): (Node, u8), (to, new_name): (Node, u8)) {
    program.rename_to(((from.0, name), from.1), ((to.0, new_name), to.1), 0, None).await;
}

fn between((least, most): (u64, u64), random: &mut SimulationRandom) -> u64 {
    least + random.below(most - least)
}

impl VolumeNamesWorld {
    /// Plays a scene.
    ///
    /// *Errors*: what went wrong.
    pub async fn play(self: &Arc<VolumeNamesWorld>, random: &mut SimulationRandom) -> Result<(), String> {
        let scene = SCENES[random.below(SCENES.len() as u64) as usize];
        let first = random.below(HOSTS as u64) as usize;
        let hosts: [usize; HOSTS] = std::array::from_fn(|at| (first + at) % HOSTS);
        self.board.tell(|| format!("scene {scene:?} of hosts {hosts:?}"));
        let programs: Vec<Arc<NamesProgram>> =
            hosts.iter().filter_map(|host| self.program(*host)).map(Arc::new).collect();
        let Ok(programs) = programs.try_into() else { return Ok(()) };
        let mut stage = SceneStage { world: self, hosts, programs, random };
        let played = match scene {
            RequiredEvent::CrossingMoves => stage.crossing_moves().await,
            RequiredEvent::ChangesBehindMove => stage.changes_behind_move().await,
            RequiredEvent::DirectoryEmptied => stage.directory_emptied().await,
            RequiredEvent::RenamedNameRemoved => stage.renamed_name_removed().await,
            RequiredEvent::SameRename => stage.same_rename().await,
            _ => stage.late_rename().await,
        };
        // A session that is over cannot make what the scene needs.
        if let Some(played) = played {
            self.met(scene);
            played?;
        }
        self.end_programs().await
    }
}

/// The hosts of a scene, and a program of each.
struct SceneStage<'a> {
    world: &'a Arc<VolumeNamesWorld>,
    hosts: [usize; HOSTS],
    programs: [Arc<NamesProgram>; HOSTS],
    random: &'a mut SimulationRandom,
}

/// `None`: it could not be played. *Errors*: what went wrong.
type ScenePlayed = Option<Result<(), String>>;

impl SceneStage<'_> {
    /// Lets a host make calls that end with the host.
    fn begin_on(&self, host: usize, calls: impl Future<Output = ()> + Send + 'static) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.world.run_on(host, async move {
            calls.await;
            let _ = done.send(());
        });
        is_done
    }

    /// Waits until calls have ended, but not for long.
    async fn ended(&mut self, calls: &mut oneshot::Receiver<()>) {
        let _ = timeout(Duration::from_millis(between(WAIT_MS, self.random)), calls).await;
    }

    fn slow_down(&mut self) {
        self.world.slow_down(between(SLOW_MS, self.random));
    }

    /// Loses the server, and a host with it.
    async fn lose_with(&mut self, host: Option<usize>) -> Result<(), String> {
        let (world, random) = (self.world, &mut *self.random);
        world.met(if host.is_some() { RequiredEvent::BothLost } else { RequiredEvent::ServerLost });
        sleep(Duration::from_micros(random.below(1000))).await;
        world.lose_server().await;
        if let Some(host) = host {
            world.kill(host, random.chance(50)).await;
        }
        sleep(Duration::from_millis(random.below(400))).await;
        world.serve().await?;
        match host {
            Some(host) => world.start_host(host).await,
            None => Ok(()),
        }
    }

    /// One host moves a directory out of another one; then a second host moves that one into the first. If the first
    /// move is lost, the second one would make a circle.
    async fn crossing_moves(&mut self) -> ScenePlayed {
        let ([host, other, _], [first, second, maker]) = (self.hosts, self.programs.clone());
        let base = make(&maker, TOP, FIRST, CreateKind::Directory).await?;
        let outer = make(&maker, base, 1, CreateKind::Directory).await?;
        let middle = make(&maker, outer, 1, CreateKind::Directory).await?;
        let moved = make(&maker, middle, 1, CreateKind::Directory).await?;
        let inner = make(&maker, moved, 1, CreateKind::Directory).await?;
        let aside = make(&maker, base, 2, CreateKind::Directory).await?;
        sleep(SETTLED).await;
        self.slow_down();
        let mut out = self.begin_on(host, rename(first, (middle, 1), (aside, 1)));
        self.ended(&mut out).await;
        let mut into = self.begin_on(other, rename(second, (base, 1), (inner, 1)));
        self.ended(&mut into).await;
        let lost = Some(host).filter(|_| self.random.chance(70));
        Some(self.lose_with(lost).await)
    }

    /// A host moves a directory, which waits for the disk, and changes modes at the same time. The next server must get
    /// what this one loses, in order.
    async fn changes_behind_move(&mut self) -> ScenePlayed {
        let ([host, ..], [program, ..]) = (self.hosts, self.programs.clone());
        let from = make(&program, TOP, FIRST, CreateKind::Directory).await?;
        let to = make(&program, TOP, SECOND, CreateKind::Directory).await?;
        make(&program, from, 1, CreateKind::Directory).await?;
        sleep(SETTLED).await;
        self.slow_down();
        let mut moved = self.begin_on(host, rename(program.clone(), (from, 1), (to, 1)));
        let changes = async move {
            for mode in 0..REPEATED_MAX {
                program.set_mode_of(to.0, to.1, 0o700 + mode).await;
            }
        };
        let _changed = self.begin_on(host, changes);
        self.ended(&mut moved).await;
        Some(self.lose_with(None).await)
    }

    /// A host replaces a directory that another host has emptied just before, and looks at where the new one was. If the
    /// removal is lost, the rename is refused. The request of the rename is so late that the removal waits no more for
    /// the kernel to forget the directory's name.
    async fn directory_emptied(&mut self) -> ScenePlayed {
        let ([host, other, _], [remover, mover, maker]) = (self.hosts, self.programs.clone());
        let to = make(&maker, TOP, FIRST, CreateKind::Directory).await?;
        let replaced = make(&maker, to, 1, CreateKind::Directory).await?;
        make(&maker, replaced, 1, CreateKind::Closed).await?;
        let from = make(&maker, TOP, SECOND, CreateKind::Directory).await?;
        make(&maker, from, 1, CreateKind::Directory).await?;
        // It has changed them itself, so its kernel is given their names for a short time.
        make(&mover, to, 2, CreateKind::Closed).await?;
        make(&mover, from, 2, CreateKind::Closed).await?;
        sleep(SETTLED).await;
        // The kernel shows these names for a while, so the rename needs no look-up.
        mover.look_at((from.0, 1), from.1).await;
        mover.look_at((to.0, 1), to.1).await;
        mover.mount.kernel.delay_next(Duration::from_millis(between(NAME_LATE_MS, self.random)));
        let mut moved = self.begin_on(other, rename(mover.clone(), (from, 1), (to, 1)));
        let unlinked = async move { remover.unlink_at((replaced.0, 1), replaced.1, false).await };
        let mut emptied = self.begin_on(host, unlinked);
        sleep(NAME_ENDS).await;
        // While this change is being stored, the two others come into the next append.
        self.slow_down();
        maker.set_mode_of(to.0, to.1, 0o700).await;
        self.ended(&mut emptied).await;
        let looks = async move {
            for _ in 0..REPEATED_MAX {
                // Without the directory that was there.
                if mover.stat_of(from.0, from.1).await == Some(2) {
                    break;
                }
            }
        };
        let mut looked = self.begin_on(other, looks);
        tokio::select! {
            () = self.ended(&mut moved) => {}
            _ = &mut looked => {}
        }
        Some(self.lose_with(Some(host)).await)
    }

    /// A host renames a name that its kernel shows; another host removes the new name, or gives it to another file.
    async fn renamed_name_removed(&mut self) -> ScenePlayed {
        let [program, other, maker] = self.programs.clone();
        let directory = make(&maker, TOP, FIRST, CreateKind::Directory).await?;
        make(&maker, directory, 1, CreateKind::Closed).await?;
        make(&maker, directory, 2, CreateKind::Closed).await?;
        sleep(SETTLED).await;
        program.look_at((directory.0, 1), directory.1).await;
        rename(program.clone(), (directory, 1), (directory, 3)).await;
        match self.random.chance(50) {
            true => other.unlink_at((directory.0, 3), directory.1, false).await,
            false => rename(other, (directory, 2), (directory, 3)).await,
        }
        program.look_at((directory.0, 3), directory.1).await;
        Some(Ok(()))
    }

    /// A rename whose request is late replaces another file than its kernel has found.
    async fn late_rename(&mut self) -> ScenePlayed {
        let ([host, other, _], [late, program, _]) = (self.hosts, self.programs.clone());
        let directory = make(&program, TOP, FIRST, CreateKind::Directory).await?;
        // Both hosts change the directory, so their kernels ask for each name.
        make(&late, directory, 1, CreateKind::Closed).await?;
        make(&program, directory, 2, CreateKind::Closed).await?;
        let file = make(&program, directory, 3, CreateKind::Closed).await?;
        sleep(SETTLED).await;
        late.mount.kernel.delay_next(Duration::from_millis(between(LATE_MS, self.random)));
        let renamed = self.begin_on(host, rename(late.clone(), (directory, 1), (directory, 2)));
        sleep(LOOKED_UP).await;
        let replaced = self.begin_on(other, rename(program, (directory, 3), (directory, 2)));
        let _ = replaced.await;
        late.stat_of(file.0, file.1).await;
        let _ = renamed.await;
        late.stat_of(file.0, file.1).await;
        Some(Ok(()))
    }

    /// Two hosts make the same rename at once, as workers do that claim a file: one of them finds it.
    async fn same_rename(&mut self) -> ScenePlayed {
        let ([host, other, _], [first, second, maker]) = (self.hosts, self.programs.clone());
        let directory = make(&maker, TOP, FIRST, CreateKind::Directory).await?;
        let kind = if self.random.chance(30) { CreateKind::Directory } else { CreateKind::Closed };
        for _ in 0..REPEATED_MAX {
            let file = make(&maker, directory, 1, kind).await?;
            if kind == CreateKind::Closed && self.random.chance(30) {
                maker.link_to(file, (directory.0, 3), directory.1).await;
            }
            let (from, to) = ((directory, 1), (directory, 2));
            let claimed = self.begin_on(host, rename(first.clone(), from, to));
            sleep(Duration::from_micros(self.random.below(MEETING_US))).await;
            let also = self.begin_on(other, rename(second.clone(), from, to));
            let _ = (claimed.await, also.await);
            maker.unlink_at((directory.0, 2), directory.1, kind == CreateKind::Directory).await;
            maker.stat_of(file.0, file.1).await;
            maker.unlink_at((directory.0, 3), directory.1, false).await;
        }
        Some(Ok(()))
    }
}
