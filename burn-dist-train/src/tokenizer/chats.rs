//! Conversations to ids.

use tokenizers::Encoding;

use super::dialogue::question;
use super::error::TokenizerError;
use super::{TOKENIZERS, Text};
use crate::chat::{ASSISTANT, Conversation, Day, Template};
use crate::corpus::Encoded;
use crate::files::caught;

impl Text {
    /// Sets the day for a chat template that asks for it.
    #[must_use]
    pub fn on(mut self, day: Day) -> Self {
        if let Some((Ok(template), _)) = &mut self.chat {
            template.set_day(day);
        }
        self
    }

    /// Returns whether answers of the chat template end as those of the model do. A model may bring a template without
    /// having learnt to speak in it.
    pub(super) fn speaks(&self) -> bool {
        let mut conversation = question("a");
        conversation.push(ASSISTANT, "b");
        let encoded = self.encode_conversation(&conversation);
        encoded.is_ok_and(|Encoded { ids, learn }| {
            let mut learnt = learn.into_iter().flatten();
            learnt.any(|index| self.is_end(ids[index]))
        })
    }

    /// The ids of a conversation, up to where the model answers.
    ///
    /// # Errors
    /// [`TokenizerError::NoChat`]; [`TokenizerError::Chat`]; [`TokenizerError::Use`].
    pub fn encode_asked(&self, conversation: &Conversation) -> Result<Vec<u32>, TokenizerError> {
        let text = self.chat_template()?.prompt(conversation)?;
        self.ids(&text)
    }

    /// The ids of the JSON of messages, of which answers are to be learnt.
    ///
    /// # Errors
    /// As [`Self::encode_conversation`].
    pub fn encode_messages(&self, json: &str) -> Result<Encoded, TokenizerError> {
        self.encode_conversation(&Conversation::parse(json)?)
    }

    /// The ids of a conversation, of which answers are to be learnt, with the token that ends each.
    ///
    /// # Errors
    /// [`TokenizerError::NoChat`]; [`TokenizerError::Chat`], if nobody answers in it, among others;
    /// [`TokenizerError::Use`].
    pub fn encode_conversation(
        &self,
        conversation: &Conversation,
    ) -> Result<Encoded, TokenizerError> {
        let rendered = self.chat_template()?.with_answers(conversation)?;
        let encoding = self.encoding(&rendered.text)?;
        let ids = encoding.get_ids().to_vec();
        let offsets = encoding.get_offsets();
        let mut learn = Vec::with_capacity(rendered.answers.len());
        for answer in rendered.answers {
            // Each token that has a byte of it.
            let from = offsets.partition_point(|(_, end)| *end <= answer.start);
            let mut to = offsets.partition_point(|(start, _)| *start < answer.end);
            if !rendered.is_marked {
                // What a template writes after the end is none of the answer.
                let end = ids[from..to.max(from)]
                    .iter()
                    .rposition(|id| self.is_end(*id));
                to = end.map_or(to, |end| from + end + 1);
            }
            if from < to {
                learn.push(from..to);
            }
        }
        Ok(Encoded { ids, learn })
    }

    fn chat_template(&self) -> Result<&Template, TokenizerError> {
        match &self.chat {
            Some((Ok(template), _)) => Ok(template),
            Some((Err(error), _)) => Err(error.clone().into()),
            None => Err(TokenizerError::NoChat),
        }
    }

    /// The tokens of a text, with the bytes that each stands for.
    pub(super) fn encoding(&self, text: &str) -> Result<Encoding, TokenizerError> {
        let encoding = caught(TOKENIZERS, || self.tokenizer.encode(text, false));
        let encoding = encoding.map_err(TokenizerError::Use)?;
        encoding.map_err(|error| TokenizerError::Use(error.to_string()))
    }
}
