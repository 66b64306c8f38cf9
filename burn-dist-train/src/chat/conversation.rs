//! The messages of a conversation.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::error::ChatError;
use super::marks::MARKS;

/// The role of who asks.
pub const USER: &str = "user";
/// The role of the model.
pub const ASSISTANT: &str = "assistant";

/// The names by which a message has the reasoning before an answer; the first is what most templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The messages of a conversation, each with a role, a content, and what else a template knows.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    pub(super) messages: Vec<Value>,
    /// Bytes of its text.
    pub(super) bytes: usize,
}

impl Conversation {
    /// Reads the JSON of a list of messages.
    ///
    /// Fields that are null are left out, and the reasoning of a message has all names that it is known by, as Hugging
    /// Face's library does it.
    ///
    /// # Errors
    /// [`ChatError::Conversation`]; [`ChatError::Mark`].
    pub fn parse(json: &str) -> Result<Self, ChatError> {
        let found: Result<Vec<Value>, _> = serde_json::from_str(json);
        let found = found.map_err(|error| ChatError::Conversation(error.to_string()))?;
        let messages = found.into_iter().map(normalized);
        let conversation = Self {
            messages: messages.collect::<Result<_, _>>()?,
            bytes: json.len(),
        };
        let text = conversation.to_json();
        match MARKS.into_iter().find(|mark| text.contains(*mark)) {
            Some(mark) => Err(ChatError::Mark(mark)),
            None => Ok(conversation),
        }
    }

    /// Adds a message.
    pub fn push(&mut self, role: &str, content: &str) {
        let content = content.replace(MARKS, "");
        self.bytes += role.len() + content.len();
        let message = [("role", role), ("content", content.as_str())];
        self.messages.push(Value::from_pairs(message));
    }

    /// Removes the last message.
    pub fn pop(&mut self) {
        self.messages.pop();
    }

    /// Returns whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Which messages are answers.
    pub(super) fn answers(&self) -> Vec<usize> {
        let is_answer = |message: &Value| {
            let role = message.get_attr("role");
            role.is_ok_and(|role| role.as_str() == Some(ASSISTANT))
        };
        let messages = self.messages.iter().enumerate();
        let answers = messages.filter(|(_, message)| is_answer(message));
        answers.map(|(number, _)| number).collect()
    }

    fn to_json(&self) -> String {
        serde_json::to_string(&self.messages).unwrap_or_default()
    }
}

/// Returns a message as templates take it.
fn normalized(message: Value) -> Result<Value, ChatError> {
    let wrong = || ChatError::Conversation(format!("one of its messages is {message}"));
    if message.kind() != ValueKind::Map {
        return Err(wrong());
    }
    let get = |name: &str| message.get_attr(name).unwrap_or_default();
    if get("role").as_str().is_none() {
        return Err(wrong());
    }
    let names = message.try_iter().map_err(|_| wrong())?;
    let pairs = names.map(|name| {
        let value = message.get_item(&name).unwrap_or_default();
        (name, value)
    });
    let mut fields: Vec<(Value, Value)> = pairs.filter(|(_, value)| !value.is_none()).collect();
    let is_there = |value: &Value| !value.is_none() && !value.is_undefined();
    let reasoning = REASONING.map(get).into_iter().find(is_there);
    if let Some(reasoning) = reasoning {
        let [first, of_thought, _] = REASONING.map(Value::from);
        if !fields.iter().any(|(name, _)| *name == of_thought) {
            fields.insert(0, (of_thought, reasoning.clone()));
        }
        match fields.iter_mut().find(|(name, _)| *name == first) {
            Some((_, value)) => *value = reasoning,
            None => fields.push((first, reasoning)),
        }
    }
    Ok(Value::from_pairs(fields))
}
