//! Judges one image: recovers it, checks the promises, compares the result with those of the other
//! judges, and judges power cuts during the recovery itself.

use std::sync::Arc;

use anyhow::{Context, Result};
use blockyard_device::{BlockDevice, OverlayDevice, RecorderDevice, WriteLog};
use blockyard_engine::{FileSystem, OpenOptions};

use super::facts::Facts;
use super::image::{Frozen, Image};
use super::judges::{Bench, check};
use super::states;
use super::walk::{self, Tree, difference};
use crate::target::engine::context;

/// What is needed to judge an image.
pub(super) struct Trial<'a> {
    /// The other judges; `None`: only our recovery and checker judge.
    pub(super) bench: Option<&'a Bench>,
    pub(super) facts: &'a Facts,
    /// Number of facts noted before the cut.
    pub(super) known: usize,
}

/// How many cuts of the recovery were judged, and the first fault, if any. A fault is the name of
/// the judge that found it, and what it found.
pub(super) type Verdict = (usize, Option<(String, String)>);

/// The device of our recovery: it leaves the image below unchanged.
type Recovered = RecorderDevice<OverlayDevice<Frozen>>;

impl Trial<'_> {
    /// Judges an image, and up to `nested` cuts of its recovery. A cut is skipped if `is_new`
    /// returns false for the hash of the image that it leaves.
    pub(super) fn judge(
        &self,
        image: &Image,
        nested: usize,
        seed: u64,
        is_new: impl Fn(u64) -> bool,
    ) -> Result<Verdict> {
        let (tree, log) = match self.whole(image)? {
            Ok(found) => found,
            Err(fault) => return Ok((0, Some(fault))),
        };
        if nested == 0 {
            return Ok((0, None));
        }
        let mut second = image.clone();
        let mut judged = 0;
        let mut cuts = states::of_recovery(&log, nested, seed);
        cuts.sort_by_key(|state| state.base);
        let mut at = 0;
        for state in cuts {
            second.advance(&log, at..state.base);
            at = state.base;
            let fault =
                second.with_steps(&log, &state.steps, |second| -> Result<Option<(String, String)>> {
                    if !is_new(second.hash()) {
                        return Ok(None);
                    }
                    judged += 1;
                    Ok(match self.whole(second)? {
                        Err(fault) => Some(fault),
                        Ok((again, _)) => {
                            difference(&tree, &again).map(|found| ("the tree".to_owned(), found))
                        }
                    })
                })?;
            if let Some((judge, found)) = fault {
                return Ok((
                    judged,
                    Some((format!("{judge}, after a cut during recovery"), format!("{state}: {found}"))),
                ));
            }
        }
        Ok((judged, None))
    }

    /// Judges one image; returns its tree and the writes of our recovery, or the first fault.
    fn whole(&self, image: &Image) -> Result<std::result::Result<(Tree, WriteLog), (String, String)>> {
        let device = Arc::new(Recovered::new(OverlayDevice::new(image.frozen())));
        let shared: Arc<dyn BlockDevice> = Arc::<Recovered>::clone(&device);
        let ours = recover(&shared)
            .and_then(|()| walk::of_device(Arc::clone(&shared)).context("the recovered image"));
        let tree = match ours {
            Ok(tree) => tree,
            Err(error) => return Ok(Err(("our recovery".to_owned(), format!("{error:#}")))),
        };
        if let Some(found) = check(&*shared)? {
            return Ok(Err(("our check".to_owned(), found)));
        }
        if let Err(found) = self.facts.check(&tree, self.known) {
            return Ok(Err(("the promises".to_owned(), found)));
        }
        if let Some(bench) = self.bench
            && let Some((judge, found)) = bench.compare(image.bytes(), &*shared, &tree)?
        {
            return Ok(Err((judge.to_owned(), found)));
        }
        Ok(Ok((tree, device.take_log())))
    }
}

/// Recovers an image by opening it, and closes it.
fn recover(device: &Arc<dyn BlockDevice>) -> Result<()> {
    let options = OpenOptions { cpus: 1, ..OpenOptions::default() };
    let fs = FileSystem::open(Arc::clone(device), options, &context(0)).context("open")?;
    fs.close(&context(0)).context("close")
}
