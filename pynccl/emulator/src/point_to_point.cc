#include "point_to_point.h"

#include <algorithm>

#include "communicator.h"
#include "error.h"

namespace emu {

namespace {

void append(std::vector<Flow>& flows, const Operation& operation) {
  const auto found = std::find_if(flows.begin(), flows.end(), [&](const Flow& flow) {
    return flow.peer == operation.root;
  });
  Flow& flow = found != flows.end() ? *found : flows.emplace_back();
  flow.peer = operation.root;
  flow.operations.push_back(&operation);
}

std::size_t bytes_of(const Operation& operation) {
  return operation.count * size_of(operation.type);
}

bool is_bytes(Type type) { return type == Type::int8 || type == Type::uint8; }

// Bytes may stand for elements of any type, as long as there are as many.
bool go_together(Type sent, Type received) {
  return sent == received || is_bytes(sent) || is_bytes(received);
}

// `number` counts the messages from one rank to the other.
std::string numbered(const Operation& operation, std::uint32_t number) {
  return format("message %u (%s)%s", number, describe(operation).c_str(),
                at(operation.site).c_str());
}

bool reached(std::uint32_t count, std::uint32_t target) {
  return static_cast<std::int32_t>(count - target) >= 0;
}

}  // namespace

Exchange::Exchange(const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    if (operation.kind == Kind::send) append(sends, operation);
    if (operation.kind == Kind::receive) append(receives, operation);
  }
}

void Communicator::post_sends(Exchange& exchange) {
  for (Flow& flow : exchange.sends) {
    PostQueue& queue = region_->posts(rank_, flow.peer);
    std::uint32_t posted = queue.posted.load(std::memory_order_relaxed);
    const std::size_t before = flow.next;
    for (; flow.next < flow.operations.size(); ++flow.next) {
      if (posted - queue.received.load(std::memory_order_acquire) == post_depth) break;
      const Operation& operation = *flow.operations[flow.next];
      queue.posts[posted % post_depth] = {reinterpret_cast<std::uintptr_t>(operation.send),
                                          bytes_of(operation), operation.count,
                                          static_cast<int>(operation.type), {}};
      copy_site(queue.posts[posted % post_depth].site, operation.site);
      queue.posted.store(++posted, std::memory_order_release);
    }
    flow.expected = posted;
    if (flow.next != before) region_->rank(flow.peer).bell.add_and_wake(1);
  }
}

bool Communicator::take_posts(Exchange& exchange) {
  for (Flow& flow : exchange.receives) {
    PostQueue& queue = region_->posts(flow.peer, rank_);
    std::uint32_t received = queue.received.load(std::memory_order_relaxed);
    while (flow.next < flow.operations.size() &&
           queue.posted.load(std::memory_order_acquire) != received) {
      const Operation& operation = *flow.operations[flow.next++];
      const Post& post = queue.posts[received % post_depth];
      const auto sent_as = static_cast<Type>(post.type);
      if (post.bytes != bytes_of(operation) || !go_together(sent_as, operation.type)) {
        report(ncclInvalidUsage,
               format("message %u from rank %d to rank %d: rank %d sends %llu %s to rank %d%s, which "
                      "receives %zu %s%s: both sides must name the same count and type",
                      received + 1, flow.peer, rank_, flow.peer,
                      static_cast<unsigned long long>(post.count), name_of(sent_as), rank_,
                      at(post.site.text).c_str(), operation.count, name_of(operation.type),
                      at(operation.site).c_str()));
        return false;
      }
      if (post.bytes != 0) {
        const unsigned char* const from = peer_address(flow.peer, post.address);
        if (from == nullptr) return false;
        // As others do meanwhile.
        const std::size_t by_all = 2 * post.bytes * static_cast<std::size_t>(nranks_);
        copy(operation.receive, from, post.bytes, stores_for(by_all));
      }
      queue.received.store(++received, std::memory_order_release);
      region_->rank(flow.peer).bell.add_and_wake(1);
    }
  }
  return true;
}

Outcome Communicator::exchange(Exchange& exchange, bool may_block) {
  const auto sent = [&](const Flow& flow) {
    return flow.next == flow.operations.size() &&
           reached(region_->posts(rank_, flow.peer).received.load(std::memory_order_acquire),
                   flow.expected);
  };
  const auto received = [](const Flow& flow) { return flow.next == flow.operations.size(); };
  const auto waits_for = [&](int r) {
    const auto open = [&](const std::vector<Flow>& flows, const auto& done) {
      return std::any_of(flows.begin(), flows.end(),
                         [&](const Flow& flow) { return flow.peer == r && !done(flow); });
    };
    return open(exchange.sends, sent) || open(exchange.receives, received);
  };
  const auto doing = [&] {
    for (const Flow& flow : exchange.receives) {
      if (received(flow)) continue;
      const PostQueue& queue = region_->posts(flow.peer, rank_);
      return numbered(*flow.operations[flow.next], queue.received.load() + 1);
    }
    for (const Flow& flow : exchange.sends) {
      if (sent(flow)) continue;
      // At least one: what is received at this very moment counts as open.
      const std::uint32_t done = region_->posts(rank_, flow.peer).received.load();
      const std::uint32_t open = std::max(flow.expected - done, 1U);
      const std::size_t first = flow.next - std::min<std::size_t>(open, flow.next);
      return numbered(*flow.operations[first], flow.expected - open + 1);
    }
    return std::string("point-to-point operations");
  };
  SharedWord& bell = region_->rank(rank_).bell;
  while (true) {
    const std::uint32_t seen = bell.value.load(std::memory_order_seq_cst);
    post_sends(exchange);
    if (!take_posts(exchange)) return Outcome::failed;
    if (std::all_of(exchange.sends.begin(), exchange.sends.end(), sent) &&
        std::all_of(exchange.receives.begin(), exchange.receives.end(), received)) {
      return Outcome::ready;
    }
    const Outcome outcome = wait(
        bell, [&] { return bell.value.load() != seen; }, waits_for, doing,
        may_block ? Patience::endless : Patience::short_of);
    if (outcome != Outcome::ready) return outcome;
  }
}

}  // namespace emu
