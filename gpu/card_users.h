// Who uses a card's memory, as NVIDIA's management library tells, if it is installed.
#pragma once

#include <string>

namespace tandem {

// "firefox (pid 812) 1.2 GiB, Xorg (pid 700) 300 MiB", largest first; empty when nothing is known.
std::string card_users(int device);

}  // namespace tandem
