//! The linear walk: groups one after the other, from the goal's group with wrap-around.

use blockyard_disk::GroupNr;
use blockyard_sync::Backend;

use super::context::Context;
use crate::allocator::Allocator;
use crate::criterion::Criterion;
use crate::error::Result;

impl<B: Backend> Allocator<B> {
    /// Visits `count` groups from `start`. Returns the group after the last one visited, or the
    /// last one itself if the search is over.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub(crate) fn walk_linear(
        &self,
        context: &mut Context<'_, B>,
        criterion: Criterion,
        start: u32,
        count: u32,
    ) -> Result<u32> {
        let mut at = start;
        for _ in 0..count {
            self.visit(context, GroupNr::new(at), criterion)?;
            if context.search.is_over() {
                return Ok(at);
            }
            at = if at + 1 >= context.asked.groups { 0 } else { at + 1 };
        }
        Ok(at)
    }
}
