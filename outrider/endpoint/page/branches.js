// Branches of a conversation. Nothing that was said is thrown away: where a message stands that has
// others beside it, its `siblings` are these, each with what followed it; null is for itself.

// Puts another message in a place, and keeps what stands there and behind it as a branch.
export function fork(messages, index, message) {
  const siblings = put(messages, index);
  messages.push(Object.assign(message, { siblings: [...siblings, null] }));
}

export function change(messages, index, number) {
  const siblings = put(messages, index);
  messages.push(...siblings[number]);
  siblings[number] = null;
  messages[index].siblings = siblings;
}

function put(messages, index) {
  const tail = messages.splice(index), siblings = tail[0].siblings ?? [null];
  delete tail[0].siblings;
  return siblings.map((one) => one ?? tail);
}

// Takes the last message away, and puts the branch before it in its place where there is one.
export function drop(messages) {
  const { siblings = [null] } = messages.at(-1), number = siblings.indexOf(null);
  const left = siblings.filter(Boolean);
  messages.pop();
  if (!left.length) return;
  const place = messages.length;
  messages.push(...left[Math.max(number - 1, 0)]);
  left[Math.max(number - 1, 0)] = null;
  if (left.length > 1) messages[place].siblings = left;
}
