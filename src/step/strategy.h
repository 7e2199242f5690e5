#pragma once

namespace annulus {

// How ranks share the updates of a step; see make_step().
enum class Strategy { synchronous, sharded, local, async };

}  // namespace annulus
