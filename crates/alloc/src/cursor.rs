//! The cursor search: round-robin by group.

use blockyard_sync::Backend;

use crate::allocator::Allocator;
use crate::context::Context;
use crate::error::Result;

impl<B: Backend> Allocator<B> {
    /// Looks for the goal from a cursor.
    ///
    /// # Errors
    /// As the ladder's search.
    pub(crate) fn search_cursor(&self, context: &mut Context<'_, B>) -> Result<()> {
        self.search(context)
    }
}
